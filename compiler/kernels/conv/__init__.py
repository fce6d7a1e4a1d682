"""Kernels of two-dimensional convolutions: one design space for each kind, one module for each algorithm.

- `conv2d`, `conv2d_bf16`, `depthwise`: the design spaces that `compiler/design_spaces.py` lists
- `conv2d_direct`, `conv2d_grouped`, `winograd`: algorithms on vectors, on the tiles of `register_tiles`
- `conv2d_amx`: the algorithm on AMX tiles. `amx_tile_choice` chooses the tiles, `amx_tile_cover` says which output is
  which row of a tile, `amx_weight_packing` lays out the weights
- `conv_geometry`, `conv_weights`, `conv_algorithm`: what the algorithms share

Only `compiler/design_spaces.py` and tests import the folder.
"""
