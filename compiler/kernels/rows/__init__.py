"""Kernels of layers on row-major tensors: lookups in embedding tables, layer normalisation, sums, concatenation, casts.

Each module holds one design space, named like its class. `compiler/design_spaces.py` imports the spaces; the kernels
of feature columns use single functions of them.
"""
