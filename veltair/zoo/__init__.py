"""Demo models as ONNX files with seeded weights: ResNet-50, MobileNet-V2, DLRM. No training, no PyTorch."""
