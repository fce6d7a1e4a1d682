"""The operands of a product of 8-bit integers as rows, whichever unit computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from veltair.compiler.codegen.row_lanes import flatten_to_rows
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, QuantisedProductParameters
from veltair.compiler.kernels.int8.epilogue import QuantisedEpilogue


def rows_and_width(tensor: Activation) -> tuple[int, int]:
    """A tensor as rows of its last axis in memory; rows may depend on the batch.

    >>> rows_and_width(Activation("y", "uint8", (-1, 64)))
    (-1, 64)
    """
    shape = tensor.physical
    return prod(shape[:-1]), shape[-1]


@dataclass(frozen=True, slots=True)
class ProductOperands:
    """Buffers of a kernel's arguments: inputs, packed weights, what sums start from, others of the unit, those of the
    epilogue, output.

    ::

        operands = ProductOperands.of(spec, buffers, others=2)
    """

    x: Any  # (rows, depth) of the input
    weight: Any
    start: Any
    others: Sequence[Any]
    numbers: Any
    zero: Any | None  # of the input, where it is known only at run time
    total: Any  # rows of the output
    epilogue: QuantisedEpilogue

    @classmethod
    def of(cls, spec: LayerSpec, buffers: Sequence[Any], others: int = 0) -> ProductOperands:
        """others: buffers between what sums start from and the epilogue's."""
        parameters, count = spec.parameters_as(QuantisedProductParameters), len(spec.inputs)
        width = spec.outputs[0].physical[-1]
        weight, start, *rest = buffers[count:-1]
        output = _as_rows(buffers[-1], width)
        residual = _as_rows(buffers[count - 1], width) if parameters.addend is Addend.RESIDUAL else None
        scale, zero = (buffers[1], buffers[2]) if parameters.dynamic else (None, None)
        epilogue = QuantisedEpilogue(output, residual, rest[others:], scale, parameters, width)
        x = _as_rows(buffers[0], int(buffers[0].shape[-1]))
        return cls(x, weight, start, rest[:others], rest[-1], zero, output.shape[0], epilogue)


def _as_rows(buffer: Any, width: int) -> Any:
    return buffer if len(buffer.shape) == 2 else flatten_to_rows(buffer, width)
