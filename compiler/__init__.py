"""The compiler: from an ONNX file to a model artifact, offline. `pipeline.PHASES` lists what it does, in order.

Only commands, benches and tests import from here; nothing that serves does.
"""
