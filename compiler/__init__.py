"""ONNX in, model artifact out (offline)."""
