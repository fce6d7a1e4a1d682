"""The sides of a product of computed matrices: how they lie in memory, and where an element of them is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.kernels.codegen.vectors import Expr

Place: TypeAlias = Callable[[Sequence[Expr], Expr, Expr], tuple[Expr, ...]]  # of (image, row, column) of a side


def sides(spec: LayerSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of both sides, transposed: (…, M, K) and (…, K, N)."""
    inputs = [tensor.shape for tensor in spec.inputs]
    left, right = (spec.weights[s].shape if s in spec.weights else inputs.pop(0) for s in ("left", "right"))
    orders = spec.attributes["left_order"], spec.attributes["right_order"]
    return tuple(left[i] for i in orders[0]), tuple(right[i] for i in orders[1])


def rows_of(spec: LayerSpec) -> int:
    """M at the greatest batch."""
    return spec.most(spec.outputs[0].shape[-2])


def contiguous(order: Sequence[int]) -> str:
    """What lies side by side in memory: the matrices' "rows", their "columns", or "neither"."""
    return {len(order) - 1: "rows", len(order) - 2: "columns"}.get(list(order).index(len(order) - 1), "neither")


def place(buffer: Any, order: Sequence[int]) -> Place:
    """Maps (image, row, column) of the transposed and broadcast side to an index of its buffer."""
    shape = [buffer.shape[i] for i in order]

    def index(image: Sequence[Expr], row: Expr, column: Expr) -> tuple[Expr, ...]:
        own = list(image[len(image) - (len(shape) - 2) :]) if len(shape) > 2 else []
        own = [0 if _is_one(extent) else i for extent, i in zip(shape, own, strict=False)]
        found: list[Expr] = [0] * len(shape)
        for at, i in zip(order, (*own, row, column), strict=True):
            found[at] = i
        return tuple(found)

    return index


def _is_one(extent: Expr) -> bool:
    return str(extent) == "1" or (isinstance(extent, int) and extent == 1)
