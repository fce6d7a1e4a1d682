"""Embedding bags whose lengths come with a query, as exporters spell them: loops over the bags."""
