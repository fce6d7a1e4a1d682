"""Operators on text that no column of ours takes: ONNX Runtime runs them, as one layer, on the texts of the query.

`text_graph` takes them out of a model, `text_layer` makes the layer. At run time `profiles/runtime/onnx_layers` gives
their session the texts.
"""
