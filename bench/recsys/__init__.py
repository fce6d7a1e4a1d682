"""Recommendation models beside ONNX Runtime, OpenVINO, TensorFlow, torch and FBGEMM: whole models and their parts.

`tensorflow_columns`, `tensorflow_graph` and `torch_tables` run in a Python of their own, which has no veltair: they and
what they import use numpy and the engine that they time.
"""
