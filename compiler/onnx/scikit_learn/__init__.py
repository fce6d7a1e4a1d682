"""What skl2onnx writes around a pipeline, as the rest of the compiler takes it: outputs and encoders of text."""
