"""Blocks of a computed tensor, picked by ids that are constants: block-sparse attention's keys and values.

The code is that of `veltair.compiler.embedding` at the level of its point, with the tensor as its table (Ember 2.2.2).
"""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import Operand, build_prim_func
from veltair.compiler.codegen.streaming_stores import with_streaming_stores
from veltair.compiler.embedding.access_emitter import DISTANCES, AccessEmitter
from veltair.compiler.embedding.dlc import decouple
from veltair.compiler.embedding.embedding_kernel import flat_memory
from veltair.compiler.embedding.families import block_gather
from veltair.compiler.embedding.passes import optimise
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.recommendation import BlockGatherParameters
from veltair.compiler.kernels.rows.lookup_ladder import is_streamed, ladder_points, level_of, order_distances

BLOCKS = (4, 1, 16)  # of a task


class BlockGather:
    """input: blocks of all samples (S * blocks, D); output: those that are picked (S * picked, D). Weights: ids int32
    (picked,). Parameters: `BlockGatherParameters`.

    >>> x, y = Activation("x", "float32", (-64, 512)), Activation("y", "float32", (-512, 512))
    >>> parameters = BlockGatherParameters(picked=512, blocks=64)
    >>> spec = LayerSpec("keys", "block_gather", (x,), (y,), {}, flops=0, parameters=parameters)
    >>> sorted(BlockGather().points(spec, frozenset({"avx2"}))[0])
    ['ahead', 'bags']
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        """Levels, distances and stores of Ember's ladder; a task copies `bags` blocks."""
        points: list[Point] = [{"ahead": n, "bags": bags} for bags in BLOCKS for n in order_distances(spec)]
        return ladder_points(spec, points)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        ahead, bags, streamed = int(point["ahead"]), int(point["bags"]), is_streamed(point)
        assert ahead in DISTANCES
        parameters, dim = spec.parameters_as(BlockGatherParameters), spec.outputs[0].shape[1]
        table = Activation("table", "float32", spec.inputs[0].shape)
        program = block_gather(table, dim, "int32", parameters.picked, parameters.blocks)
        decoupled = decouple(optimise(program, level_of(point)))

        def body(dense: Any, ids: Any, out: Any) -> None:
            memories = {"table": flat_memory(dense), "ids": flat_memory(ids), "out": flat_memory(out)}
            with T.parallel(0, T.ceildiv(out.shape[0], bags)) as task:
                first = T.bind(task * bags)
                emitter = AccessEmitter(decoupled, memories, out.shape[0], ahead, streamed)
                emitter.tile(first, T.min(bags, out.shape[0] - first))

        ids = spec.weights["ids"]
        operands: list[Operand] = [spec.inputs[0], ids, spec.outputs[0]]
        function = build_prim_func(operands, with_streaming_stores(body) if streamed else body)
        tasks = -(-spec.most(spec.outputs[0].shape[0]) // bags)
        return Kernel(function, (ids,), 8 * bags * dim, tasks * max(ahead, 1))
