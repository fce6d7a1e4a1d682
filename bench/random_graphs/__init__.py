"""Random ONNX networks, to find what a list of known ones does not have."""
