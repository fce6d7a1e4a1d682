"""Converters of ONNX operators to Relax that keep what NaN and infinities give, where TVM's lose it.

TVM's arithmetic takes floats for ordered: not (a < b) becomes b <= a, a < b or b <= a becomes true, and a - a becomes
0. None of that holds for NaN. Booleans are therefore joined as bytes, whose bits TVM does not look behind.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.frontend.onnx import onnx_frontend


class _Not(onnx_frontend.Not):  # type: ignore[misc]  # TVM has no types
    """ONNX Not: the last bit of a byte, turned."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        def turn(data: Any) -> Any:
            return te.compute(
                data.shape,
                lambda *at: tirx.Cast("bool", tirx.bitwise_xor(tirx.Cast("uint8", data(*at)), tirx.const(1, "uint8"))),
                name="logical_not",
            )

        return bb.emit_te(turn, inputs[0])


def _joining(converter: Any, join: Callable[[Any, Any], Any]) -> Any:
    """TVM's converter of ONNX And, Or or Xor, on bytes."""

    class Joining(converter):  # type: ignore[misc]  # TVM has no types
        @classmethod
        def base_impl(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            known = all(isinstance(value, tvm.ir.GenericConst) for value in inputs)
            if known or not all(isinstance(value.ty, relax.TensorType) for value in inputs):
                return super().base_impl(bb, inputs, attr, params)

            def joined(a: Any, b: Any) -> Any:
                return topi.cast(join(topi.cast(a, "uint8"), topi.cast(b, "uint8")), "bool")

            return bb.emit_te(joined, *inputs)

    return Joining


class _Equal(onnx_frontend.Equal):  # type: ignore[misc]  # TVM has no types
    """ONNX Equal; of a value and itself, as x <= x, which is false for NaN."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if _is_twice(inputs):
            return relax.op.less_equal(*inputs)
        return super()._impl_v13(bb, inputs, attr, params)


class _Sub(onnx_frontend.Sub):  # type: ignore[misc]  # TVM has no types
    """ONNX Sub; of a value and itself, as x * 0, which is NaN for NaN and infinities."""

    @classmethod
    def base_impl(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        if _is_twice(inputs):
            return relax.op.multiply(inputs[0], _number(0.0, inputs[0]))
        return super().base_impl(bb, inputs, attr, params)


class _Sign(onnx_frontend.Sign):  # type: ignore[misc]  # TVM has no types
    """ONNX Sign: NaN of NaN."""

    @classmethod
    def _impl_v9(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        found = bb.normalize(relax.op.sign(inputs[0]))
        if not _is_float(inputs[0]):
            return found
        return relax.op.where(bb.normalize(relax.op.isnan(inputs[0])), inputs[0], found)


class _Elu(onnx_frontend.Elu):  # type: ignore[misc]  # TVM has no types
    """ONNX Elu: x above 0, otherwise alpha (e**x - 1)."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        return _exponential_below(bb, inputs[0], 1.0, attr.get("alpha", 1.0))


class _Selu(onnx_frontend.Selu):  # type: ignore[misc]  # TVM has no types
    """ONNX Selu: gamma times an Elu."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        gamma = attr.get("gamma", 1.05070102214813232421875)
        return _exponential_below(bb, inputs[0], gamma, gamma * attr.get("alpha", 1.67326319217681884765625))


class _ThresholdedRelu(onnx_frontend.ThresholdedRelu):  # type: ignore[misc]  # TVM has no types
    """ONNX ThresholdedRelu: x above alpha, otherwise 0, of -infinity and NaN too."""

    @classmethod
    def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        above = bb.normalize(relax.op.greater(inputs[0], _number(attr.get("alpha", 1.0), inputs[0])))
        return relax.op.where(above, inputs[0], _number(0.0, inputs[0]))


class _Clip(onnx_frontend.Clip):  # type: ignore[misc]  # TVM has no types
    """ONNX Clip: a bound that is left out is the greatest float, so that an infinity becomes that."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        x, low, high = [*inputs, None, None][:3]
        if _is_float(x):
            limit = float(np.finfo(str(x.ty.dtype.dtype)).max)
            low = _number(-limit, x) if low is None else low
            high = _number(limit, x) if high is None else high
        return super()._impl_v13(bb, [x, low, high], attr, params)


class _Hardmax(onnx_frontend.Hardmax):  # type: ignore[misc]  # TVM has no types
    """ONNX Hardmax: a one at the first of the greatest values, also in a row of -infinity."""

    @classmethod
    def _impl_v13(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
        axis = attr.get("axis", -1) % len(inputs[0].ty.shape)
        find = UNORDERED["ArgMax"].get_converter(13)
        places = find(bb, inputs, {"axis": axis, "keepdims": 1}, params)

        def ones(places: Any, data: Any) -> Any:
            def element(*at: Any) -> Any:
                chosen = places(*at[:axis], 0, *at[axis + 1 :])
                return tirx.Cast(str(data.dtype), tirx.EQ(chosen, tirx.Cast("int64", at[axis])))

            return te.compute(data.shape, element, name="hardmax")

        return bb.emit_te(ones, places, inputs[0])


class _ReduceLogSumExp(onnx_frontend.ReduceLogSumExp):  # type: ignore[misc]  # TVM has no types
    """ONNX ReduceLogSumExp: infinite where a value is, or where all are -infinity.

    The greatest value, which is taken off, is finite: an infinity less itself is NaN.
    """

    @classmethod
    def get_converter(cls, opset: int) -> Any:
        def convert(bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            x, axes = inputs[0], attr.get("axes", None)
            if len(inputs) > 1 and inputs[1] is not None:
                axes = onnx_frontend.get_constant(inputs[1], params).value.numpy().reshape(-1).tolist()
            if not axes and attr.get("noop_with_empty_axes", 0):
                return x
            axes, limit = list(axes) if axes else None, float(np.finfo(str(x.ty.dtype.dtype)).max)
            greatest = bb.normalize(relax.op.max(x, axes, True))
            greatest = bb.normalize(relax.op.maximum(greatest, _number(-limit, x)))
            greatest = bb.normalize(relax.op.minimum(greatest, _number(limit, x)))
            powers = bb.normalize(relax.op.exp(bb.normalize(relax.op.subtract(x, greatest))))
            total = bb.normalize(relax.op.log(bb.normalize(relax.op.sum(powers, axes, True))))
            found = bb.normalize(relax.op.add(total, greatest))
            return found if attr.get("keepdims", 1) else relax.op.squeeze(found, axes)

        return convert


def _choosing(converter: Any, intrinsic: str) -> Any:
    """TVM's converter of ONNX Max or Min, of which NaN in any operand makes NaN, by LLVM's instruction for that.

    TVM's choice is the second of two operands without an order. Where NaN in the first one was looked for, an operand
    stood three times in the result: TVM, which makes one expression of many operators, came to no end with a dozen.
    """

    class Choosing(converter):  # type: ignore[misc]  # TVM has no types
        @classmethod
        def _impl_v1(cls, bb: Any, inputs: Any, attr: Any, params: Any) -> Any:
            if all(isinstance(value, tvm.ir.GenericConst) for value in inputs) or not _is_float(inputs[0]):
                return super()._impl_v1(bb, inputs, attr, params)

            return functools.reduce(lambda a, b: _each(bb, intrinsic, a, b), inputs)

    return Choosing


def _each(bb: Any, intrinsic: str, *values: Any) -> Any:
    """An intrinsic of LLVM on each element of two values, which are broadcast to one shape."""
    shape, dtype = list(bb.normalize(relax.op.maximum(*values)).ty.shape), str(values[0].ty.dtype.dtype)
    numbers = [value.value.numpy() if isinstance(value, tvm.ir.GenericConst) else None for value in values]
    literals = [number.item() if number is not None and number.size == 1 else None for number in numbers]

    def computed(*tensors: Any) -> Any:
        def element(*at: Any) -> Any:
            left = iter(tensors)
            read = [_read(next(left), at) if each is None else tirx.const(each, dtype) for each in literals]
            return tirx.call_llvm_pure_intrin(dtype, intrinsic, *read)

        return te.compute(shape, element, name="chosen")

    return bb.emit_te(computed, *[value for value, each in zip(values, literals, strict=True) if each is None])


def _read(tensor: Any, at: Sequence[Any]) -> Any:
    """The element of a tensor that is broadcast, at those places of the whole."""
    own = zip(at[len(at) - len(tensor.shape) :], tensor.shape, strict=True)
    return tensor(*[0 if isinstance(extent, tirx.IntImm) and extent.value == 1 else place for place, extent in own])


def _arg_reduction(converter: Any, better: Callable[[Any, Any], Any], or_same: Callable[[Any, Any], Any]) -> Any:
    """TVM's converter of ONNX ArgMax or ArgMin, whose place is inside of the axis whatever the values are.

    As in ONNX Runtime the first value is taken, and then what is better than the one that is held: TVM begins with
    place -1 and a bound, which stays where no value passes the bound.
    """

    class ArgReduction(converter):  # type: ignore[misc]  # TVM has no types
        @classmethod
        def get_converter(cls, opset: int) -> Any:
            return lambda bb, inputs, attr, params: bb.emit_te(_first_best, inputs[0], attr)

    def _first_best(data: Any, attr: Any) -> Any:
        axis, keeps = attr.get("axis", 0) % len(data.shape), attr.get("keepdims", 1)
        wins = or_same if attr.get("select_last_index", 0) else better
        nothing = tirx.const(-1, "int64")

        def combine(held: Any, other: Any) -> Any:
            taken = tirx.Or(tirx.EQ(held[0], nothing), wins(other[1], held[1]))
            taken = tirx.And(taken, tirx.NE(other[0], nothing))
            return tirx.Select(taken, other[0], held[0]), tirx.Select(taken, other[1], held[1])

        reduce = te.comm_reducer(combine, lambda place, value: (nothing, tirx.const(0, str(value))), name="arg_reduce")
        along = te.reduce_axis((0, data.shape[axis]), "along")
        shape = [1 if i == axis else extent for i, extent in enumerate(data.shape)]
        shape = shape if keeps else [*shape[:axis], *shape[axis + 1 :]]

        def element(*at: Any) -> Any:
            place = [*at[:axis], along, *at[axis + bool(keeps) :]]
            return reduce((tirx.Cast("int64", along), data(*place)), axis=along)

        places, _ = te.compute(shape, element, name="arg_reduce")
        return te.compute(shape, lambda *at: places(*at), name="places")

    return ArgReduction


def _exponential_below(bb: Any, x: Any, above: float, below: float) -> Any:
    """above * x above 0, otherwise below * (e**x - 1)."""
    power = bb.normalize(relax.op.subtract(bb.normalize(relax.op.exp(x)), _number(1.0, x)))
    positive = bb.normalize(relax.op.greater(x, _number(0.0, x)))
    line = x if above == 1 else bb.normalize(relax.op.multiply(x, _number(above, x)))
    return relax.op.where(positive, line, bb.normalize(relax.op.multiply(power, _number(below, x))))


def _is_twice(inputs: Any) -> bool:
    """Whether an operator of floats has the same computed value for both operands."""
    first, second = inputs[:2]
    return bool(not isinstance(first, tvm.ir.GenericConst) and first.same_as(second) and _is_float(first))


def _is_float(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType) and "float" in str(value.ty.dtype.dtype)


def _number(value: float, like: Any) -> Any:
    return relax.const(value, str(like.ty.dtype.dtype))


UNORDERED = {  # by operator
    "Not": _Not,
    "And": _joining(onnx_frontend.And, topi.bitwise_and),
    "Or": _joining(onnx_frontend.Or, topi.bitwise_or),
    "Xor": _joining(onnx_frontend.Xor, topi.bitwise_xor),
    "ArgMax": _arg_reduction(onnx_frontend.ArgMax, operator.gt, operator.ge),
    "Clip": _Clip,
    "Hardmax": _Hardmax,
    "ReduceLogSumExp": _ReduceLogSumExp,
    "ArgMin": _arg_reduction(onnx_frontend.ArgMin, operator.lt, operator.le),
    "Equal": _Equal,
    "Max": _choosing(onnx_frontend.Max, "llvm.maximum"),
    "Min": _choosing(onnx_frontend.Min, "llvm.minimum"),
    "Sub": _Sub,
    "Sign": _Sign,
    "Elu": _Elu,
    "Selu": _Selu,
    "ThresholdedRelu": _ThresholdedRelu,
}
