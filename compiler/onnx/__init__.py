"""ONNX files: reading, checking and simplifying them, constants and tables, attributes of nodes.

Everything else in the compiler may import the folder. It imports `compiler/features/from_onnx` and no other folder of
the compiler.
"""
