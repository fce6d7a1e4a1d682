"""Layers that ONNX Runtime runs: nodes that neither a pattern nor TVM's importer takes.

`onnxruntime_layer` makes such a layer of nodes, `onnxruntime_space` is its design space of one point. At run time
`profiles/runtime/onnx_layers` has the sessions.
"""
