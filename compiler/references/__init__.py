"""What each kind of layer computes, in numpy and ONNX Runtime: code versions are checked against it."""
