"""What becomes of sums in int32: scale and bias, activation, the tensor added to it, and the rounding to 8 bits.

Rounding is that of QuantizeLinear: to nearest, ties to even, plus the zero point, saturated. Where an activation is a
pair of bounds (relu, clip) in front of a rounding, scale and bias are in steps of that rounding, and its bounds are the
activation's too: a sum takes one multiplication, and the activation nothing. A bias of whole steps is in the sums
(`starting_sums`), and a result that the output's type alone bounds is bounded by the packing of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import masked_store
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, ramp, vector_type
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, QuantisedProductParameters

# Places in the kernel's array of numbers. Of a rounding: the factor to its steps, the bounds there (of "between" plus
# _ROUNDS); then of "between" what its steps are multiplied by, of "output" the zero point. The last two are integers.
_BETWEEN, _RESIDUAL, OUTPUT, PADDING, _ZERO, _LEAST, _SIZE = 0, 4, 6, 10, 12, 13, 16
# Added to a small float, it leaves the nearest integer in the lowest bits; taken away again, it leaves that integer.
# The multiplication in front adds it at no cost, so that this is an operation less than to round.
_ROUNDS = 1.5 * 2.0**23
_AVX512, _CURRENT_ROUNDING = "llvm.x86.avx512", 4


def quantum(spec: LayerSpec, name: str) -> tuple[float, int]:
    """Scale and zero point of one of the layer's tensors: "input", "between", "residual" or "output"."""
    scale, zero = spec.weights[name]
    return float(scale), int(zero)


class Units(NamedTuple):
    """Whether values are in steps of the rounding that follows, so that bounds are all that activations need.

    >>> Units.of(QuantisedProductParameters("relu"), rounded=True)
    Units(product=True, result=True)
    """

    product: bool  # what the first activation is applied to
    result: bool  # what the last one is applied to

    @classmethod
    def of(cls, parameters: QuantisedProductParameters, *, rounded: bool) -> Units:
        """rounded: whether the output has 8 bits."""
        first, result = parameters.first, rounded and activation_bounds(parameters.last) is not None
        if parameters.between:
            return cls(activation_bounds(first) is not None, result)
        scales = (
            first in ("none", "relu") if parameters.addend is not Addend.NONE else activation_bounds(first) is not None
        )
        return cls(result and scales, result and scales)


def activation_bounds(activation: str) -> tuple[float, float] | None:
    """The bounds that an activation consists of; None where there is more to it."""
    kind, *numbers = activation.split(":")
    found = {"none": (-np.inf, np.inf), "relu": (0.0, np.inf)}.get(kind)
    return (float(numbers[0]), float(numbers[1])) if kind == "clip" else found


def rounding_bounds(quantum: tuple[float, int], dtype: str, activations: Sequence[str]) -> tuple[float, float, float]:
    """Steps of a unit, and the bounds of what is rounded: those of activations in their order, then the type's."""
    (scale, zero), info = quantum, np.iinfo(dtype)
    inverse = float(np.float32(1) / np.float32(scale))
    bounds = [(lower * inverse, upper * inverse) for lower, upper in filter(None, map(activation_bounds, activations))]
    low, high = -np.inf, np.inf
    for lower, upper in (*bounds, (float(info.min - zero), float(info.max - zero))):
        low, high = (min(max(bound, lower), upper) for bound in (low, high))
    return inverse, low, high


def pack_numbers(spec: LayerSpec) -> NDArray[np.float32]:
    """The scales, bounds and zero points of a layer in the order in which the epilogue reads them."""
    numbers = np.zeros(_SIZE, np.float32)
    parameters, steps = spec.parameters, 1.0
    product = parameters if isinstance(parameters, QuantisedProductParameters) else None
    units = Units.of(product, rounded="output" in spec.weights) if product else Units(product=False, result=False)
    if "output" in spec.weights:
        bounds = [product.last] if product and units.result else []
        if product and units.product and not product.between and product.addend is Addend.NONE:
            bounds = [product.first, *bounds]
        scale, zero = quantum(spec, "output")
        rounding = rounding_bounds((scale, zero), spec.outputs[0].dtype, bounds)
        steps = rounding[0] if units.result else 1.0
        numbers[OUTPUT : OUTPUT + 4] = *rounding, zero
        numbers.view(np.int32)[_ZERO : _LEAST + 1] = zero, np.rint(rounding[1]) + zero
    if product and product.between:
        between = quantum(spec, "between")
        rounding = rounding_bounds(between, product.between, [product.first] if units.product else [])
        inverse, low, high = rounding
        numbers[_BETWEEN : _BETWEEN + 4] = inverse, low + _ROUNDS, high + _ROUNDS, between[0] * steps
    if "residual" in spec.weights:
        scale, zero = quantum(spec, "residual")
        numbers[_RESIDUAL : _RESIDUAL + 2] = scale * steps, -zero * scale * steps
    if "input" in spec.weights:
        numbers[PADDING + 1], numbers[PADDING] = quantum(spec, "input")
    return numbers


def epilogue_weights(spec: LayerSpec, panel: int) -> list[NDArray[np.float32]]:
    """Scale, bias unless it is in the sums, and the addend's bias of every column, with zeros behind the last one; then
    the numbers."""
    parameters, numbers = spec.parameters_as(QuantisedProductParameters), pack_numbers(spec)
    units = Units.of(parameters, rounded="output" in spec.weights)
    steps = numbers[OUTPUT] if units.result else np.float32(1)
    product = steps if not parameters.between else numbers[_BETWEEN] if units.product else np.float32(1)
    scaled = {"scale": product} | ({} if parameters.whole_bias else {"bias": product})
    scaled |= {"added": steps} if "added" in spec.weights else {}
    return [*(pad_axis(spec.weights[name] * by, 0, panel) for name, by in scaled.items()), numbers]


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
        value = self._result(sums, row, column)
        if self.output.dtype != "float32":
            value = T.min(T.max(value, self._number(OUTPUT + 1)), self._number(OUTPUT + 2)) + broadcast(_ROUNDS)
            zero = T.broadcast(T.reinterpret("int32", self.weights[-1][_ZERO]), LANES)
            value = T.cast(T.reinterpret("int32x16", value) + zero, f"{self.output.dtype}x16")
        masked_store(self.output, T.bind(value), row, column, width=self.width)

    def store_packed(self, sums: Sequence[Expr], row: Expr, column: Expr) -> None:
        """Finish 64 sums in four vectors, whose columns are all there, to 8 bits. Needs AVX-512.

        Packing saturates: that is all that the type's bounds take, and other lower bounds are the bytes' own.
        """
        integers, bounded = [], not self.parameters.saturates
        for nth, vector in enumerate(sums):
            value = self._result(vector, row, column + nth * LANES)
            value = T.min(value, self._number(OUTPUT + 2)) if bounded else value
            arguments = (T.bind(value), T.broadcast(T.int32(0), LANES), T.int16(-1), T.int32(_CURRENT_ROUNDING))
            integers.append(T.call_llvm_pure_intrin("int32x16", f"{_AVX512}.mask.cvtps2dq.512", *arguments))
        zero, least = (T.reinterpret("int32", self.weights[-1][place]) for place in (_ZERO, _LEAST))
        halves = []
        for pair in (integers[:2], integers[2:]):
            words = T.call_llvm_pure_intrin("int16x32", f"{_AVX512}.packssdw.512", *pair)
            shift = T.broadcast(T.cast(zero, "int16"), 2 * LANES)
            halves.append(T.call_llvm_pure_intrin("int16x32", "llvm.sadd.sat.v32i16", words, shift))
        dtype = str(self.output.dtype)
        pack = "packuswb" if dtype == "uint8" else "packsswb"
        packed = T.call_llvm_pure_intrin("int8x64", f"{_AVX512}.{pack}.512", *halves)
        # Packs work on 16 bytes each: the fours of a vector's lanes lie apart, behind those of the others.
        lanes = T.Shuffle([T.int32(4 * (lane % 4) + lane // 4) for lane in range(LANES)], list(range(LANES)))
        ordered = T.call_llvm_pure_intrin(
            "int32x16", f"{_AVX512}.permvar.si.512", T.reinterpret("int32x16", packed), lanes
        )
        value = T.reinterpret(f"{dtype}x64", ordered)
        value = T.max(value, T.broadcast(T.cast(least, dtype), 4 * LANES)) if bounded else value
        T.buffer_store(self.output, T.bind(value), [row, ramp(column, 4 * LANES)])

    def _result(self, sums: Expr, row: Expr, column: Expr) -> Expr:
        """What 16 sums become, in steps where it is rounded then, without the bounds of the last rounding."""
        scale, *biases, _ = (buffer[ramp(column)] for buffer in self.weights)
        parameters, rounded = self.parameters, self.output.dtype != "float32"
        units = Units.of(parameters, rounded=rounded)
        if self.dynamic_scale is not None:
            scale = scale * T.broadcast(self.dynamic_scale[0], 16)
        value = T.cast(sums, "float32x16") * scale
        value = T.bind(value if parameters.whole_bias else value + biases[0])
        if not units.product or (parameters.addend is not Addend.NONE and not parameters.between):
            value = T.bind(apply_activation(value, parameters.first))
        if parameters.between:
            value = (value if units.product else value * self._number(_BETWEEN)) + broadcast(_ROUNDS)
            value = T.min(T.max(value, self._number(_BETWEEN + 1)), self._number(_BETWEEN + 2)) - broadcast(_ROUNDS)
            value = value * self._number(_BETWEEN + 3)
        if parameters.addend is Addend.BIAS:
            value = value + biases[-1]
        elif self.residual is not None:
            other = to_float(self.residual, row, column) * self._number(_RESIDUAL)
            value = value + (other + self._number(_RESIDUAL + 1))
        if not units.result:
            value = T.bind(apply_activation(T.bind(value), parameters.last))
        return value * self._number(OUTPUT) if rounded and not units.result else value

    def _number(self, place: int) -> Expr:
        return broadcast(self.weights[-1][place])
