"""Vector code of each operator of the stitching language, on 16 floats. What is true is 1, what is false 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen import vector_math as vm
from veltair.compiler.codegen.vectors import Expr, broadcast

# Reductions: the value to start from, two values into one, and the 16 lanes of a value into one number.
NEUTRAL = {"reduce_sum": 0.0, "reduce_max": float("-inf"), "reduce_min": float("inf")}
COMBINE: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "reduce_sum": lambda a, b: a + b,
    "reduce_max": lambda a, b: T.max(a, b),
    "reduce_min": lambda a, b: T.min(a, b),
}
FOLD: Mapping[str, Callable[[Expr], Expr]] = {
    "reduce_sum": vm.sum_lanes,
    "reduce_max": vm.max_lanes,
    "reduce_min": vm.min_lanes,
}


def _select(condition: Expr, a: Expr, b: Expr) -> Expr:
    """a where the condition holds, else b.

    It picks bits: of a Select of floats TVM works out an interval, as of integers, and fails where that is multiplied.
    """
    lanes = "int32x16"
    return T.reinterpret("float32x16", T.Select(condition, T.reinterpret(lanes, a), T.reinterpret(lanes, b)))


def _truth(condition: Expr) -> Expr:
    return _select(condition, broadcast(1.0), broadcast(0.0))


def _keeping_nan(choose: Callable[[Expr, Expr], Expr], a: Expr, b: Expr) -> Expr:
    """T.min or T.max, which take the second of two that have no order: a NaN stays one, whichever it is.

    A constant comes first, which costs nothing; between two values NaN in the other one is picked by a comparison.
    """
    if _is_number(b):
        return choose(b, a)
    return choose(a, b) if _is_number(a) else _select(b <= b, choose(b, a), b)


def _is_number(value: Expr) -> bool:
    return isinstance(value, tirx.Broadcast) and isinstance(value.value, tirx.FloatImm)


ELEMENTWISE: Mapping[str, Callable[..., Expr]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: T.Div(a, b),
    "min": lambda a, b: _keeping_nan(T.min, a, b),
    "max": lambda a, b: _keeping_nan(T.max, a, b),
    "neg": lambda a: broadcast(0.0) - a,
    "abs": lambda a: T.max(a, broadcast(0.0) - a),
    "exp": vm.exp,
    "log": vm.log,
    "erf": vm.erf,
    "tanh": vm.tanh,
    "sigmoid": vm.sigmoid,
    "sin": vm.sin,
    "cos": vm.cos,
    "sqrt": lambda a: T.sqrt(a),
    "round": lambda a: T.call_llvm_pure_intrin("float32x16", "llvm.rint.v16f32", a),
    "reciprocal": lambda a: T.Div(broadcast(1.0), a),
    "less": lambda a, b: _truth(a < b),
    "less_equal": lambda a, b: _truth(a <= b),
    "equal": lambda a, b: _truth(T.EQ(a, b)),
    "where": lambda c, a, b: _select(c > broadcast(0.5), a, b),
}
