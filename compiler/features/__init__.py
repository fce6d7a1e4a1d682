"""Embedding columns: from raw features (numbers, strings) to the rows that a recommendation model reads (RECom)."""
