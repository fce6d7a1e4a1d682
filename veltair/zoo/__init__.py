"""Models of the field, written as ONNX with seeded weights."""
