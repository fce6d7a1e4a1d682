"""TensorFlow's SavedModels as ONNX files, converted by tf2onnx in a process of its own."""
