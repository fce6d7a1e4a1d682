"""Patterns of layers on sequences: attention, embeddings of tokens, gated recurrent units.

`recurrent` reads the body of a Scan with `gated_cell`, which computes with the symbols of `cell_algebra`.
`compiler/patterns/by_operator.py` imports the patterns; nothing else imports from here.
"""
