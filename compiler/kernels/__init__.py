"""The kernels: for each kind of layer a design space, whose points are code versions, and the generator of their code.

`compiler/design_spaces.py` lists the design space of each kind. A folder holds the kinds of one family: `conv`,
`feature_maps`, `matmul`, `attention`, `recurrent`, `rows`. `generic` compiles by TVM what has no kernel of its own;
`codegen` is what the generators share. Patterns (`compiler/patterns`) make the layers. `compiler/embedding`,
`compiler/features` and `compiler/stitch` add spaces of their own.
"""
