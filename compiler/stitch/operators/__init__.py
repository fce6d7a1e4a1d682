"""What the operators of the stitching language are: from ONNX nodes and back, in vector code, and in numpy."""
