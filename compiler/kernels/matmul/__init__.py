"""Kernels of matrix products: with constant weights (dense layers), and of computed matrices (batched products).

The design spaces are `matmul`, `matmul_bf16`, `batched_matmul` and `batched_matmul_bf16`; `compiler/design_spaces.py`
imports them. The AMX tiles of dense layers are emitted in `matmul_amx`. `bf16_microkernels` computes the register
blocks of batched products, and of attention (`compiler/kernels/attention`), which imports it, `amx_tiles` and
`matrix_unit`.
"""
