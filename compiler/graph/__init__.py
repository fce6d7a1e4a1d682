"""The layer graph: what a model is between its ONNX nodes and its kernels.

`layer_spec` is one layer, with the typed parameters of its kind in `parameters/`; `layer_graph` a whole model. Patterns
read the model through a `ModelView` and change the graph only through a `GraphBuilder`; `completion` gives every output
memory of its own and every tensor its halo. Everything else in the compiler imports the folder; it imports
`compiler/onnx` alone, and the type of table storage.
"""
