"""8-bit integers from a file of floats: samples, calibration by ONNX Runtime's tool, and which nodes are rounded."""
