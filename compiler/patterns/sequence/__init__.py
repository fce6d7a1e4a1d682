"""Patterns of layers on sequences: attention, embeddings of tokens, recurrent cells.

`recurrent` finds recurrences as `recurrent_operators` and `recurrent_scan` read them (`recurrence_match`); the latter
reads the body of a Scan with `gated_cell`, which computes with the symbols of `cell_algebra`.
`compiler/patterns/by_operator.py` imports the patterns; nothing else imports from here.
"""
