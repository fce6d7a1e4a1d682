"""What skl2onnx writes around a pipeline, in a form that the rest of the compiler takes: outputs and encoders of text."""
