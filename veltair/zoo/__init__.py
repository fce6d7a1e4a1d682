"""The models of the paper, BERT and recommendation models as ONNX files with seeded weights, made without training.

`registry` names the models and writes them; a folder for each kind holds their definitions; the modules here write
ONNX graphs. `veltair.commands`, the tests and `bench` import this package; `compiler`, `profiles`, `scheduler`,
`server` and `loadgen` may not.
"""
