"""Which ONNX nodes become layers of our own: each module takes nodes of one kind, or leaves them to the region."""
