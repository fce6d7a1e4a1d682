"""Memory-intensive operators stitched into few kernels (FusionStitching).

`regions.import_region` turns a run of ONNX nodes into layers. `operators` says what the language's operators are:
`node_translation` rewrites nodes as operators of a small language (`stitch_program`); `fusion_explorer` decides which
operators become one kernel (PatternReduction, beam search, remote fusion), with the two `cost_models` of the paper;
`iteration_space` composes a program into one loop nest; `stitched_kernel`, `value_emitter` and `operator_code` generate
its code; `stitched_space` is the design space that the tuning searches. `remote_fusion` packs small patterns into one
kernel. `alternatives` lists the ways that compete with a layer, and `operators.program_nodes` gives a program to others
as ONNX nodes. `operators.evaluate` computes programs in numpy. The composition schemes are the paper's, mapped to a
CPU: thread composition is what stays in registers ("registers"), warp composition a buffer of one row in the L1 cache,
block composition one of a tile of columns in the L2 cache ("buffer"). `compiler.graph`, `compiler.kernels` and
`compiler.tuning` import this folder.
"""
