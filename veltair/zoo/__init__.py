"""The models of the paper, and DLRM, as ONNX files with seeded weights. No training, no PyTorch."""
