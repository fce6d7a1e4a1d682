"""compiler/onnx"""
