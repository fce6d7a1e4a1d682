"""The operands of a product of computed matrices: how they lie in memory, and where an element of them is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, TypeAlias

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters

OperandIndex: TypeAlias = Callable[[Sequence[Expr], Expr, Expr], tuple[Expr, ...]]  # of (image, row, column)


class MatrixOrder(Enum):
    """Which elements of the matrices of an operand lie side by side in memory.

    >>> MatrixOrder.of_axes((0, 2, 1)).name  # matrices (M, K) of a tensor (…, K, M)
    'COLUMN_MAJOR'
    """

    ROW_MAJOR = auto()  # those of a row
    COLUMN_MAJOR = auto()  # those of a column
    STRIDED = auto()  # neither

    @classmethod
    def of_axes(cls, order: Sequence[int]) -> MatrixOrder:
        """order: the transpose that makes (…, rows, columns) of the tensor in memory."""
        from_end = len(order) - list(order).index(len(order) - 1)
        return {1: cls.ROW_MAJOR, 2: cls.COLUMN_MAJOR}.get(from_end, cls.STRIDED)


def operand_shapes(spec: LayerSpec) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of both operands, transposed: (…, M, K) and (…, K, N)."""
    inputs = [tensor.shape for tensor in spec.inputs]
    left, right = (spec.weights[s].shape if s in spec.weights else inputs.pop(0) for s in ("left", "right"))
    parameters = spec.parameters_as(BatchedMatmulParameters)
    return tuple(left[i] for i in parameters.left_order), tuple(right[i] for i in parameters.right_order)


def operand_buffers(spec: LayerSpec, buffers: Sequence[Any]) -> tuple[Any, Any]:
    """The buffers of both operands, of which the kernel takes computed ones before constant ones."""
    first, second = buffers[:2]
    return (second, first) if "left" in spec.weights else (first, second)


def max_matrix_rows(spec: LayerSpec) -> int:
    """M at the greatest batch."""
    return spec.most(spec.outputs[0].shape[-2])


def operand_index(buffer: Any, order: Sequence[int]) -> OperandIndex:
    """Maps (image, row, column) of the transposed and broadcast operand to an index of its buffer."""
    shape = [buffer.shape[i] for i in order]

    def index(image: Sequence[Expr], row: Expr, column: Expr) -> tuple[Expr, ...]:
        own = list(image[len(image) - (len(shape) - 2) :]) if len(shape) > 2 else []
        own = [0 if _is_one(extent) else i for extent, i in zip(shape, own, strict=False)]
        found: list[Expr] = [0] * len(shape)
        for at, i in zip(order, (*own, row, column), strict=True):
            found[at] = i
        return tuple(found)

    return index


def unravel(number: Expr, extents: Sequence[Expr]) -> list[Expr]:
    """The index, one entry an extent, of the nth element in row-major order."""
    index: list[Expr] = []
    rest = number
    for extent in reversed(extents):
        index.insert(0, T.bind(rest % extent))
        rest = T.bind(rest // extent)
    return index


def _is_one(extent: Expr) -> bool:
    return str(extent) == "1" or (isinstance(extent, int) and extent == 1)
