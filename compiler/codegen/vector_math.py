"""Elementary functions of vectors of 16 floats, and reductions of their lanes.

Polynomials after range reduction, in fp32 but for the reduction of angles, and within a few units in the last place.
They are plain arithmetic, so that LLVM makes one instruction of each operation on AVX-512 and two on AVX2, where calls
of libm would go lane by lane. Every NaN stays one. What a function uses twice is in a register: call it inside a
builder's frame.

Bounds are written constant first: `max(c, x)` is `c > x ? c : x`, which keeps a NaN in x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import vector_in_register, vector_load, vector_store
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast, broadcast_uint32

LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # the first has few bits: n * LN2_HIGH is exact
# Adding it leaves round(x) + 126 in the low bits of the sum: a float's exponent, ready to be shifted into place.
ROUND = 12582912.0 + 126.0  # 1.5 * 2**23 + 126
# 2 * (e**r - 1 - r) / r**2 on [-ln 2 / 2, ln 2 / 2] (Cephes), highest power first.
EXP = (2 * 1.9875691500e-4, 2 * 1.3981999507e-3, 2 * 8.3334519073e-3, 2 * 4.1665795894e-2, 2 * 1.6666665459e-1, 1.0)
# 2**f on [-1/2, 1/2] with a relative error of 8e-5, highest power first.
EXP2 = (0.0551713905, 0.2426111075, 0.6932610373, 0.9999280754)
# (log(1 + r) - r + r**2 / 2) / r**3 on [sqrt(1/2) - 1, sqrt(2) - 1] (Cephes).
LOG = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
# erf(x) = x * P(x**2) / Q(x**2) up to where it rounds to 1 (the rational minimax of Eigen).
ERF_BOUND = 3.832506856900711
ERF_P = (0.00022905065861350646, 0.0034082910107109506, 0.050955695062380861, 0.18520832239976145, 1.128379143519084)
ERF_Q = (
    *(-1.1791602954361697e-7, 0.000023547966471313185, 0.0010179625278914885, 0.014070470171167667),
    *(0.11098505178285362, 0.49746925110067538, 1.0),
)
# tanh(x) = x * P(x**2) / Q(x**2), likewise; scaled to Q(0) = 1, so that the least floats do not underflow.
TANH_BOUND = 7.90531110763549805
_Q0 = 4.89352518554385e-03
_TANH_P = (
    *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08),
    *(1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
)
TANH_P = tuple(c / _Q0 for c in _TANH_P)
TANH_Q = tuple(c / _Q0 for c in (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, _Q0))

# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 on [-pi / 4, pi / 4] as polynomials of r**2 (Cephes).
SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
HALF_PI_HIGH, HALF_PI_LOW = math.pi / 2, 6.123233995736766e-17
LARGEST_ANGLE = 2.0**48  # above it, a double does not hold the quarter turns: libm takes those, lane by lane


def exp(x: Expr) -> Expr:
    """e**x: 0 below -86.99 (where the result leaves the normal floats), infinity above 88.72."""
    x = vector_in_register(T.min(broadcast(88.8), T.max(broadcast(-87.0), x)))
    # The intrinsic hides the sum from TVM, which would take ROUND away again without rounding.
    shifted = vector_in_register(
        T.call_llvm_pure_intrin("float32x16", "llvm.fma.v16f32", x, broadcast(LOG2_E), broadcast(ROUND))
    )
    n = vector_in_register(shifted - broadcast(ROUND))
    r = vector_in_register(x - n * broadcast(LN2_HIGH) - n * broadcast(LN2_LOW))
    twice = _polynomial(r, EXP) * (r * r) + (r + r + broadcast(2.0))
    power = T.reinterpret(
        "float32x16", T.shift_left(_bits(shifted), broadcast_uint32(23))
    )  # 2**(n - 1); 0 where n is -126
    return vector_in_register(twice * power)


def log(x: Expr) -> Expr:
    """The natural logarithm: -infinity at 0, NaN below."""
    x = vector_in_register(x)
    tiny = x < broadcast(1.17549435e-38)  # subnormal; TVM cannot bind booleans
    bits = T.bind(_bits(T.Select(tiny, x * broadcast(2.0**23), x)))
    # The mantissa goes to [sqrt(1/2), sqrt(2)): what exceeds sqrt(2) is halved, by carrying into the exponent.
    carried = T.bind(bits + broadcast_uint32(0x3F800000 - 0x3F3504F3))
    exponent = T.cast(T.shift_right(carried, broadcast_uint32(23)), "float32x16")
    e = vector_in_register(exponent - T.Select(tiny, broadcast(127.0 + 23.0), broadcast(127.0)))
    mantissa = T.bitwise_and(carried, broadcast_uint32(0x7FFFFF)) + broadcast_uint32(0x3F3504F3)
    r = vector_in_register(T.reinterpret("float32x16", mantissa) - broadcast(1.0))
    square = vector_in_register(r * r)
    tail = vector_in_register(_polynomial(r, LOG) * (r * square) + e * broadcast(LN2_LOW) - square * broadcast(0.5))
    regular = vector_in_register(r + tail + e * broadcast(LN2_HIGH))
    finite = vector_in_register(T.Select(x < broadcast(math.inf), regular, x))  # infinity and NaN stay what they are
    above = vector_in_register(T.Select(T.EQ(x, broadcast(0.0)), broadcast(-math.inf), finite))
    return vector_in_register(T.Select(x < broadcast(0.0), broadcast(math.nan), above))


def erf(x: Expr) -> Expr:
    """The error function."""
    return _rational(x, ERF_BOUND, ERF_P, ERF_Q)


def tanh(x: Expr) -> Expr:
    """The hyperbolic tangent."""
    return _rational(x, TANH_BOUND, TANH_P, TANH_Q)


def sin(x: Expr) -> Expr:
    """The sine, of angles of any size."""
    return _of_angle(x, T.sin, quarters=0)


def cos(x: Expr) -> Expr:
    """The cosine, of angles of any size."""
    return _of_angle(x, T.cos, quarters=1)


def sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x)."""
    return vector_in_register(T.Div(broadcast(1.0), broadcast(1.0) + exp(broadcast(0.0) - x)))


def approximate_sigmoid(x: Expr) -> Expr:
    """1 / (1 + e**-x) with a relative error below 2e-4, in a third of the time of `sigmoid`.

    That is enough for what is rounded to bfloat16. Needs AVX-512.
    """
    x = vector_in_register(T.min(broadcast(87.0), T.max(broadcast(-87.0), x)))
    shifted = vector_in_register(
        T.call_llvm_pure_intrin("float32x16", "llvm.fma.v16f32", x, broadcast(-LOG2_E), broadcast(ROUND + 1.0))
    )
    f = vector_in_register(x * broadcast(-LOG2_E) - (shifted - broadcast(ROUND + 1.0)))
    power = T.reinterpret("float32x16", T.shift_left(_bits(shifted), broadcast_uint32(23)))
    sum_ = vector_in_register(_polynomial(f, EXP2) * power + broadcast(1.0))
    inverse = "llvm.x86.avx512.rcp14.ps.512"
    return vector_in_register(T.call_llvm_pure_intrin("float32x16", inverse, sum_, sum_, T.int16(-1)))


def sum_lanes(x: Expr) -> Expr:
    """The sum of the 16 lanes, as one float: halves are added to halves."""
    return _reduce_lanes(x, lambda a, b: a + b)


def max_lanes(x: Expr) -> Expr:
    """The maximum of the 16 lanes, as one float."""
    return _reduce_lanes(x, T.max)


def min_lanes(x: Expr) -> Expr:
    """The minimum of the 16 lanes, as one float."""
    return _reduce_lanes(x, T.min)


def _of_angle(x: Expr, exact: Callable[[Expr], Expr], quarters: int) -> Expr:
    """The sine of an angle and so many quarter turns: of what is left of whole quarters, found in doubles.

    exact: the function itself, which takes the largest angles.
    """
    x = vector_in_register(x)
    # Adding the constant leaves the nearest count of quarter turns in the low bits of the double.
    shift = 1.5 * 2.0**52
    wide = T.bind(T.cast(x, "float64x16"))
    turned = T.bind(_fused(wide, _doubles(2 / math.pi), _doubles(shift)))
    count = T.bind(T.reinterpret("int64x16", turned))
    whole = T.bind(_doubles(shift) - turned)
    left = _fused(whole, _doubles(HALF_PI_LOW), T.bind(_fused(whole, _doubles(HALF_PI_HIGH), wide)))
    r = vector_in_register(T.cast(left, "float32x16"))
    square = vector_in_register(r * r)
    sine = vector_in_register(_polynomial(square, SIN) * (square * r) + r)
    cosine = vector_in_register(_polynomial(square, COS) * (square * square) - square * broadcast(0.5) + broadcast(1.0))
    quadrant = T.bind(T.cast(count, "int32x16") + T.Broadcast(T.int32(quarters), LANES))
    odd = T.bitwise_and(quadrant, T.Broadcast(T.int32(1), LANES)) != T.Broadcast(T.int32(0), LANES)
    bits = T.bind(T.Select(odd, T.reinterpret("int32x16", cosine), T.reinterpret("int32x16", sine)))
    sign = T.shift_left(T.bitwise_and(quadrant, T.Broadcast(T.int32(2), LANES)), T.Broadcast(T.int32(30), LANES))
    found = T.alloc_buffer((LANES,), "float32", scope="global")  # TVM would ask the heap for a local one
    vector_store(found, T.reinterpret("float32x16", T.bitwise_xor(bits, sign)), 0)
    with T.If(max_lanes(T.max(x, broadcast(0.0) - x)) > T.float32(LARGEST_ANGLE)), T.Then():
        vector_store(found, exact(x), 0)
    return vector_in_register(vector_load(found, 0))


def _fused(a: Expr, b: Expr, c: Expr) -> Expr:
    return T.call_llvm_pure_intrin("float64x16", "llvm.fma.v16f64", a, b, c)


def _doubles(value: float) -> Expr:
    return T.Broadcast(T.float64(value), LANES)


def _reduce_lanes(x: Expr, combine: Callable[[Expr, Expr], Expr]) -> Expr:
    x = T.bind(x)
    for half in (8, 4, 2, 1):
        low, high = (T.Shuffle([x], [T.int32(first + i) for i in range(half)]) for first in (0, half))
        x = T.bind(combine(low, high))
    return x


def _rational(x: Expr, bound: float, numerator: Sequence[float], denominator: Sequence[float]) -> Expr:
    x = vector_in_register(T.max(broadcast(-bound), T.min(broadcast(bound), x)))
    square = vector_in_register(x * x)
    return vector_in_register(T.Div(x * _polynomial(square, numerator), _polynomial(square, denominator)))


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's scheme, the coefficient of the highest power first."""
    value = broadcast(coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + broadcast(coefficient)
    return value


def _bits(x: Expr) -> Expr:
    return T.reinterpret("uint32x16", x)
