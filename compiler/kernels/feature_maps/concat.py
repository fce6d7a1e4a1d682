"""Concatenation along the channels of blocked activations, from any channel on."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.feature_maps.blocked_planes import blocked_index, row_bytes, row_points


class Concat:
    """The design space of "concat", on any number of blocked inputs.

    A block of the result is put together in a register from all input blocks that fall into it::

        for point in Concat().points(spec, features):
            kernel = Concat().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return row_points(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        y = spec.outputs[0]
        _, channels, height, width = y.shape
        block, rows = y.block, int(point["rows"])
        blocks, chunks = -(-channels // block), -(-height // rows)
        sources = [(i, c) for i, x in enumerate(spec.inputs) for c in range(x.shape[1])]  # (input, channel) of each

        def body(*buffers: Any) -> None:
            Y = buffers[-1]
            with T.parallel(0, Y.shape[0] * blocks * chunks) as task:
                image, target = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                for b in range(blocks):
                    taken = sources[b * block : (b + 1) * block]
                    with (
                        when(target == b),
                        T.serial(0, T.min(rows, height - first)) as r,
                        T.serial(0, width) as column,
                    ):
                        value = _gather_block(spec, buffers, taken, image, first + r, column)
                        *where, _ = blocked_index(y, image, b, first + r, column, 0)
                        T.buffer_store(Y, value, [*where, ramp(0, block)])

        function = build_prim_func([*spec.inputs, y], body)
        return Kernel(function, (), 2 * rows * row_bytes(y), blocks * chunks)


def _gather_block(
    spec: LayerSpec, buffers: tuple[Any, ...], taken: list[tuple[int, int]], image: Expr, row: Expr, column: Expr
) -> Expr:
    """One block of the result: lane i from (input, channel) `taken[i]`, zero behind the last."""
    block = spec.outputs[0].block
    kind = f"{spec.outputs[0].dtype}x{block}"
    value = T.broadcast(T.float32(0) if kind.startswith("float32") else T.uint16(0), block)
    for source in dict.fromkeys((i, c // block) for i, c in taken):
        *where, _ = blocked_index(spec.inputs[source[0]], image, source[1], row, column, 0)
        found = buffers[source[0]][(*where, ramp(0, block))]
        order = list(range(block))
        for lane, (i, c) in enumerate(taken):
            if (i, c // block) == source:
                order[lane] = block + c % block
        if order == list(range(block, 2 * block)):
            return found
        value = T.bind(T.Shuffle([value, found], order))
    return value
