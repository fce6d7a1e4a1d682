"""Texts that a graph splits: how it cleans them, the tensors that classes of tokens stand for, what becomes of them.

`text_cleaning` reads the steps before a split, `split_nodes` puts classes of tokens in its place, and `token_columns`
finds by evaluation what a row of tokens leads to. `from_onnx.classes.class_graph` and `class_columns` use them.
"""
