"""Patterns: which ONNX nodes become layers of our own, with which parameters.

A pattern is a function named after the layer that it emits. It reads the model through a `ModelView`, emits layers
through the `GraphBuilder` and returns True, or it returns False and leaves the node to the next pattern. `by_operator`
lists the patterns of each ONNX operator; `epilogue` takes up what follows an anchor. Nodes that no pattern takes are
imported by TVM. Only `compiler/pipeline.py` and tests import the folder.
"""
