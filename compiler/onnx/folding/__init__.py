"""What follows from shapes alone leaves a model (`shape_folding`), and what only values tell is left to ONNX Runtime.

It imports its parent folder's modules; of those, `onnx_model` alone imports it.
"""
