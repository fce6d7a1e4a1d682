"""A worker on loan: queries that need no decision run without the engine."""
