"""What becomes of sums in int32: scale and bias, activation, the tensor added to it, and the rounding to 8 bits.

Rounding is that of QuantizeLinear: to nearest, ties to even, plus the zero point, saturated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import masked_store
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp, vector_type
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, QuantisedProductParameters

# Places in the kernel's array of numbers.
_BETWEEN, _RESIDUAL, OUTPUT, PADDING, _SIZE = 0, 4, 6, 10, 16


def quantum(spec: LayerSpec, name: str) -> tuple[float, int]:
    """Scale and zero point of one of the layer's tensors: "input", "between", "residual" or "output"."""
    scale, zero = spec.weights[name]
    return float(scale), int(zero)


def pack_numbers(spec: LayerSpec) -> NDArray[np.float32]:
    """The scales and zero points of a layer in the order in which the epilogue reads them."""
    numbers = np.zeros(_SIZE, np.float32)
    between = spec.parameters.between if isinstance(spec.parameters, QuantisedProductParameters) else ""
    for place, name, dtype in ((_BETWEEN, "between", between), (OUTPUT, "output", spec.outputs[0].dtype)):
        if name in spec.weights:
            (scale, zero), info = quantum(spec, name), np.iinfo(dtype)
            numbers[place : place + 4] = np.float32(1) / np.float32(scale), info.min - zero, info.max - zero, scale
            if name == "output":
                numbers[place + 3] = zero
    if "residual" in spec.weights:
        numbers[_RESIDUAL : _RESIDUAL + 2] = quantum(spec, "residual")
    if "input" in spec.weights:
        numbers[PADDING + 1], numbers[PADDING] = quantum(spec, "input")
    return numbers


def epilogue_weights(spec: LayerSpec, panel: int) -> list[NDArray[np.float32]]:
    """Scale, bias and the addend's bias of every column, with zeros behind the last one; then the numbers."""
    names = ("scale", "bias", "added") if "added" in spec.weights else ("scale", "bias")
    return [*(pad_axis(spec.weights[name], 0, panel) for name in names), pack_numbers(spec)]


def round_within(value: Expr, inverse: Expr, low: Expr, high: Expr, count: int = LANES) -> Expr:
    """`count` floats times `inverse`, rounded to nearest even, between two bounds."""
    name = f"llvm.rint.v{count}f32" if count > 1 else "llvm.rint.f32"
    scaled = T.call_llvm_pure_intrin(vector_type("float32", count), name, value * inverse)
    return T.min(T.max(scaled, low), high)


def to_float(buffer: Any, *index: Expr) -> Expr:
    """16 neighbouring integers as floats."""
    return T.cast(T.cast(buffer[(*index[:-1], ramp(index[-1]))], "int32x16"), "float32x16")


@dataclass(frozen=True, slots=True)
class QuantisedEpilogue:
    """Finishes and stores sums.

    ::

        epilogue = QuantisedEpilogue(output, residual, rest, None, parameters, width)
        epilogue.store(sums, row, column)  # 16 outputs
    """

    output: Any  # buffer (rows, columns)
    residual: Any | None
    weights: Sequence[Any]  # buffers of `epilogue_weights`
    dynamic_scale: Any | None  # buffer of the input's scale, which `scale` is to be multiplied by
    parameters: QuantisedProductParameters
    width: int

    def store(self, sums: Expr, row: Expr, column: Expr) -> None:
        """Finish 16 sums; the first must belong to a column, those behind the last are not written."""
        scale, bias, *added, _ = (buffer[ramp(column)] for buffer in self.weights)
        if self.dynamic_scale is not None:
            scale = scale * T.broadcast(self.dynamic_scale[0], 16)
        value = T.bind(T.cast(sums, "float32x16") * scale + bias)
        value = T.bind(apply_activation(value, self.parameters.first))
        if self.parameters.between:
            rounded = round_within(value, *(self._number(_BETWEEN + i) for i in range(3)))
            value = T.bind(rounded * self._number(_BETWEEN + 3))
        if self.parameters.addend is Addend.BIAS:
            value = value + added[0]
        elif self.residual is not None:
            other = to_float(self.residual, row, column) - self._number(_RESIDUAL + 1)
            value = value + other * self._number(_RESIDUAL)
        value = T.bind(apply_activation(T.bind(value), self.parameters.last))
        if self.output.dtype != "float32":
            rounded = round_within(value, *(self._number(OUTPUT + i) for i in range(3)))
            whole = T.cast(rounded + self._number(OUTPUT + 3), "int32x16")
            value = T.bind(T.cast(whole, f"{self.output.dtype}x16"))
        masked_store(self.output, value, row, column, width=self.width)

    def _number(self, place: int) -> Expr:
        return broadcast(self.weights[-1][place])
