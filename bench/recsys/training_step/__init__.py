"""A training step of a DIEN, and of embedding bags alone: `python -m bench.recsys.training_step --torch PYTHON`.

`dien` is the network on our operators, on torch's own and on FBGEMM's tables; `timed_steps` runs in a Python with
torch.
"""
