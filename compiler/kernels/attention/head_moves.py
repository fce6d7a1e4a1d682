"""Heads that lie side by side in rows, copied one behind the other, and back: what attention apart is framed by."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.kernels.attention.head_places import head_places


class SplitHeads:
    """inputs: those of an attention that hold Q, K and V at their places; outputs: Q, K and V, each (images, heads,
    tokens, width), fp32. A head of K and V that several of Q share is copied for each. Parameters:
    `AttentionParameters`.

    >>> SplitHeads().points(LayerSpec("split", "split_heads", (), (), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(AttentionParameters)

        def body(*buffers: Any) -> None:
            outputs = buffers[len(spec.inputs) :]
            with T.parallel(0, outputs[0].shape[0] * parameters.heads) as task:
                image, head = T.bind(task // parameters.heads), T.bind(task % parameters.heads)
                places = head_places(parameters, buffers, image, head)
                for place, extent, out in zip(places, parameters.extents, outputs, strict=True):
                    with T.serial(0, extent) as token:
                        for first in range(0, parameters.width, LANES):
                            value = vector_load(place.buffer, place.row + token, place.column + first)
                            _store(out, value, image, head, token, first)

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        return Kernel(function, (), sum(parameters.extents) * parameters.width * 8, parameters.heads)


class MergeHeads:
    """input: (images, heads, tokens, width); output: rows of heads side by side (images * tokens, heads * width); fp32.

    Parameters: `AttentionParameters`.

    >>> MergeHeads().points(LayerSpec("merge", "merge_heads", (), (), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(AttentionParameters)
        heads, width, tokens = parameters.heads, parameters.width, parameters.tokens

        def body(mixed: Any, out: Any) -> None:
            with T.parallel(0, mixed.shape[0] * heads) as task:
                image, head = T.bind(task // heads), T.bind(task % heads)
                with T.serial(0, tokens) as token:
                    for first in range(0, width, LANES):
                        value = vector_load(mixed, image, head, token, T.int32(first))
                        _store(out, value, image * tokens + token, head * width + first)

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        return Kernel(function, (), tokens * width * 8, heads)


def _store(out: Any, value: Expr, *place: Expr | int) -> None:
    *index, column = place
    vector_store(out, T.bind(value), *index, T.int32(column) if isinstance(column, int) else column)
