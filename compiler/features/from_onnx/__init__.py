"""compiler/features/from_onnx"""
