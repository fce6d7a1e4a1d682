"""Layers of generated code, for ONNX nodes that have no kernel of their own: TVM's importer, fusion, a plain schedule.

A run of neighbouring nodes becomes a model of its own, goes through Relax, and every fused function that comes out is a
layer. The graph builder imports from here (by way of `stitch/`), and `compiler/design_spaces.py`.
"""
