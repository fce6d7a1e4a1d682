"""What kernel generators share: vectors of 16 lanes, memory, AMX tiles, mathematical functions, weight packing.

- `prim_func`: the function around a kernel; `control_flow`: branches and loops that run
- `vectors`, `memory`, `transpose`, `row_lanes`: registers and how they are filled and emptied
- `bf16`, `bf16_rounding`, `weight_packing`: number formats and weights; `multiply_add`, `amx`: products
- `vector_math`, `activation`: functions of vectors

The folders of `compiler/kernels`, `compiler/embedding`, `compiler/features/kernel` and `compiler/stitch` import it. It
imports `compiler/graph` alone of the compiler.
"""
