"""Kernels on channel-blocked feature maps besides convolutions: pools, normalisations, chains, changes of layout.

They are bound by memory, so the one choice of most of their design spaces is how many rows a task takes
(`blocked_planes.row_points`). Only `compiler/design_spaces.py` and tests import the folder.
"""
