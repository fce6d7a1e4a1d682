"""From layers to code versions: search, transfer between workloads, Pareto frontier, checks against references.

Only `compiler/pipeline.py`, `assemble.py` and `verify.py` import from here. It imports kernels, timing and locality.
"""
