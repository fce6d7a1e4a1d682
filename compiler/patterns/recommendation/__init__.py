"""Patterns of recommendation models: embedding bags and other lookups, sums of one-hot vectors and of concatenations.

`feature_columns` fits the layers of feature columns to what reads them. `compiler/patterns/by_operator.py`, `concat`
and `compiler/pipeline.py` import from here.
"""
