"""Patterns of image models: convolutions, pools, normalisations over channels, and changes of layout.

`patterns/by_operator.py` and tests import them.
"""
