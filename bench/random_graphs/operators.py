"""Random applications of ONNX's operators: each function draws one on the values that a graph has.

A function returns nodes, the last of which gives the result, or None where no value fits. Attributes and extents are
drawn small and odd, because kernels have their edges there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper


class Values(Protocol):
    """What the functions see of a graph."""

    rng: np.random.Generator

    def pick(self, *, rank: tuple[int, int] = (1, 6), kind: str = "f", least: int = 1) -> str | None:
        """A value of a rank within `rank` (both included), whose axes from the second on have at least `least`."""

    def shape(self, name: str) -> list[int]:
        """Its extents at the smaller batch size."""

    def fixed(self, name: str, axis: int) -> bool:
        """Whether an axis has the same extent at every batch size."""

    def constant(self, array: NDArray[np.generic]) -> str: ...

    def fresh(self) -> str:
        """A name that no value has."""


T = TypeVar("T")
Draw = Callable[[Values], list[NodeProto] | None]
OPERATORS: dict[str, Draw] = {}


def draws(function: Draw) -> Draw:
    """Enter a function under its name."""
    OPERATORS[function.__name__] = function
    return function


def weights(v: Values, *shape: int, scale: float | None = None) -> str:
    fan = float(np.prod(shape[1:])) if len(shape) > 1 else 4.0
    return v.constant((v.rng.standard_normal(shape) * (scale or fan**-0.5)).astype(np.float32))


def ints(v: Values, *numbers: int) -> str:
    return v.constant(np.array(numbers, np.int64))


def node(v: Values, op: str, *inputs: str, **attributes: object) -> NodeProto:
    kept = {key: value for key, value in attributes.items() if value is not None}
    return helper.make_node(op, list(inputs), [v.fresh()], **kept)


def last(nodes: list[NodeProto]) -> str:
    return nodes[-1].output[0]


def chance(v: Values, part: float) -> bool:
    return bool(v.rng.random() < part)


def one_of(v: Values, *options: T) -> T:
    return options[int(v.rng.integers(len(options)))]


def number(v: Values, low: int, high: int) -> int:
    """Both ends included."""
    return int(v.rng.integers(low, high + 1))


def fixed_axis(v: Values, name: str, first: int = 0) -> int | None:
    axes = [axis for axis in range(first, len(v.shape(name))) if v.fixed(name, axis)]
    return one_of(v, *axes) if axes else None


def signed(v: Values, axis: int, rank: int) -> int:
    """The axis, or the same counted from the end."""
    return axis - rank if chance(v, 0.5) else axis


UNARY = "Relu Sigmoid Tanh Softplus Softsign Erf Abs Neg Exp Sin Cos Floor Ceil HardSwish Elu Selu LeakyRelu"
UNARY += " HardSigmoid Celu Mish Sign Round Atan Identity ThresholdedRelu"
ACTIVATIONS = "Relu Sigmoid Tanh HardSwish LeakyRelu Elu Softplus Erf"


@draws
def unary(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    return [node(v, one_of(v, *UNARY.split()), x)]


@draws
def guarded(v: Values) -> list[NodeProto] | None:
    """Sqrt, Log, Reciprocal and Pow of what is positive."""
    if (x := v.pick()) is None:
        return None
    nodes = [node(v, "Abs", x)]
    nodes.append(node(v, "Add", last(nodes), v.constant(np.float32(0.5))))
    op = one_of(v, "Sqrt", "Log", "Reciprocal", "Pow")
    more = (v.constant(np.float32(one_of(v, 2.0, 0.5, -1.0, 1.7))),) if op == "Pow" else ()
    return [*nodes, node(v, op, last(nodes), *more)]


@draws
def clip(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    low, high = v.constant(np.float32(-0.5)), v.constant(np.float32(1.0))
    return [node(v, "Clip", x, *one_of(v, (low, high), (low,), ("", high)))]


@draws
def gelu(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    if chance(v, 0.5):
        return [node(v, "Gelu", x, approximate=one_of(v, "none", "tanh"))]
    nodes = [node(v, "Div", x, v.constant(np.float32(2**0.5)))]
    nodes.append(node(v, "Erf", last(nodes)))
    nodes.append(node(v, "Add", last(nodes), v.constant(np.float32(1))))
    nodes.append(node(v, "Mul", x, last(nodes)))
    return [*nodes, node(v, "Mul", last(nodes), v.constant(np.float32(0.5)))]


@draws
def binary(v: Values) -> list[NodeProto] | None:
    """Two values, or a value and a constant that is broadcast."""
    op = one_of(v, "Add", "Sub", "Mul", "Max", "Min", "Mean", "Sum")
    if (x := v.pick()) is None:
        return None
    if chance(v, 0.6):
        shape = [extent if v.fixed(x, axis) and chance(v, 0.6) else 1 for axis, extent in enumerate(v.shape(x))]
        if not v.fixed(x, 0) and chance(v, 0.5):
            shape = shape[1:]
        y = weights(v, *shape, scale=1.0)
        pair = (x, y) if chance(v, 0.5) else (y, x)
        return [node(v, op, *pair)]
    y = v.pick()
    return None if y is None else [node(v, op, x, y)]


@draws
def divide(v: Values) -> list[NodeProto] | None:
    x, y = v.pick(), v.pick()
    if x is None or y is None:
        return None
    nodes = [node(v, "Abs", y)]
    nodes.append(node(v, "Add", last(nodes), v.constant(np.float32(1))))
    return [*nodes, node(v, "Div", x, last(nodes))]


@draws
def compare(v: Values) -> list[NodeProto] | None:
    if (x := v.pick()) is None:
        return None
    op = one_of(v, "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
    return [node(v, op, x, v.constant(np.float32(one_of(v, 0.0, 0.3, -1.0))))]


@draws
def logical(v: Values) -> list[NodeProto] | None:
    x, y = v.pick(kind="b"), v.pick(kind="b")
    if x is None or y is None:
        return None
    return [node(v, "Not", x)] if chance(v, 0.3) else [node(v, one_of(v, "And", "Or", "Xor"), x, y)]


@draws
def where(v: Values) -> list[NodeProto] | None:
    condition, x = v.pick(kind="b"), v.pick()
    if condition is None or x is None:
        return None
    other = v.pick() if chance(v, 0.3) else v.constant(np.float32(one_of(v, 0.0, -1e4, 1.0)))
    if other is None:
        return None
    return [node(v, "Where", condition, *((x, other) if chance(v, 0.5) else (other, x)))]


@draws
def cast(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(kind=one_of(v, "b", "i"))) is None:
        return None
    return [node(v, "Cast", x, to=1)]


@draws
def product(v: Values) -> list[NodeProto] | None:
    """By a matrix of weights."""
    if (x := v.pick(rank=(2, 5))) is None or not v.fixed(x, -1):
        return None
    inner, outer = v.shape(x)[-1], number(v, 1, 40)
    nodes = [node(v, "MatMul", x, weights(v, inner, outer))]
    if chance(v, 0.5):
        nodes.append(node(v, "Add", last(nodes), weights(v, outer, scale=1.0)))
    if chance(v, 0.4):
        nodes.append(node(v, one_of(v, *ACTIVATIONS.split()), last(nodes)))
    return nodes


@draws
def batched_product(v: Values) -> list[NodeProto] | None:
    """Of two values, one of which may be transposed."""
    x, y = v.pick(rank=(2, 4)), v.pick(rank=(2, 4))
    if x is None or y is None:
        return None
    nodes: list[NodeProto] = []
    if v.shape(x)[-1] != v.shape(y)[-2]:
        rank = len(v.shape(y))
        nodes.append(node(v, "Transpose", y, perm=[*range(rank - 2), rank - 1, rank - 2]))
        y = last(nodes)
    return [*nodes, node(v, "MatMul", x, y)]


@draws
def attention(v: Values) -> list[NodeProto] | None:
    """Scores of a value with itself, normalised, times itself."""
    if (x := v.pick(rank=(3, 4))) is None:
        return None
    rank = len(v.shape(x))
    nodes = [node(v, "Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2])]
    nodes.append(node(v, "MatMul", x, last(nodes)))
    nodes.append(node(v, "Div", last(nodes), v.constant(np.float32(2.5))))
    nodes.append(node(v, "Softmax", last(nodes), axis=-1))
    return [*nodes, node(v, "MatMul", last(nodes), x)]


@draws
def gemm(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 2))) is None or not v.fixed(x, 1):
        return None
    inner, outer, turned = v.shape(x)[1], number(v, 1, 40), chance(v, 0.5)
    w = weights(v, *((outer, inner) if turned else (inner, outer)))
    bias = (weights(v, *one_of(v, (outer,), (1, outer), (1,)), scale=1.0),) if chance(v, 0.7) else ()
    factors = {"alpha": 0.5, "beta": 2.0} if chance(v, 0.2) else {}
    return [node(v, "Gemm", x, w, *bias, transB=int(turned), **factors)]


def _kernel(v: Values, extents: list[int]) -> list[int]:
    return [number(v, 1, min(5, extent)) for extent in extents]


def _window(v: Values, extents: list[int], kernel: list[int], *, dilated: bool) -> dict[str, object]:
    spatial = len(extents)
    found: dict[str, object] = {"kernel_shape": kernel, "strides": [number(v, 1, 3) for _ in range(spatial)]}
    if chance(v, 0.2):
        found["auto_pad"] = one_of(v, "SAME_UPPER", "SAME_LOWER", "VALID")
        return found
    found["pads"] = [number(v, 0, max(k - 1, 0)) for k in kernel * 2]
    if dilated and chance(v, 0.25):
        found["dilations"] = [number(v, 1, 2) for _ in range(spatial)]
    return found


@draws
def convolution(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(3, 5))) is None or not all(v.fixed(x, axis) for axis in range(1, len(v.shape(x)))):
        return None
    channels, *extents = v.shape(x)[1:]
    group = one_of(v, 1, 1, channels, *(g for g in (2, 3, 4) if channels % g == 0))
    out = group * number(v, 1, max(1, 40 // group))
    kernel = _kernel(v, extents)
    inputs = [x, weights(v, out, channels // group, *kernel)]
    if chance(v, 0.6):
        inputs.append(weights(v, out, scale=1.0))
    nodes = [node(v, "Conv", *inputs, group=group, **_window(v, extents, kernel, dilated=True))]
    if chance(v, 0.3):
        mean = [weights(v, out, scale=1.0) for _ in range(3)]
        variance = v.constant((v.rng.random(out) + 0.5).astype(np.float32))
        nodes.append(node(v, "BatchNormalization", last(nodes), *mean, variance))
    if chance(v, 0.4):
        nodes.append(node(v, one_of(v, *ACTIVATIONS.split()), last(nodes)))
    return nodes


@draws
def transposed_convolution(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(3, 5))) is None or not all(v.fixed(x, axis) for axis in range(1, len(v.shape(x)))):
        return None
    channels, *extents = v.shape(x)[1:]
    group = one_of(v, 1, 1, 1, channels)
    kernel = [number(v, 1, 4) for _ in extents]
    w = weights(v, channels, number(v, 1, 8), *kernel)
    strides = [number(v, 1, 3) for _ in extents]
    pads = [number(v, 0, max(k - 1, 0) // 2) for k in kernel] * 2
    more = {"output_padding": [s - 1 for s in strides]} if chance(v, 0.2) else {}
    return [node(v, "ConvTranspose", x, w, group=group, strides=strides, pads=pads, **more)]


@draws
def pool(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(3, 5))) is None or not all(v.fixed(x, axis) for axis in range(1, len(v.shape(x)))):
        return None
    if chance(v, 0.25):
        return [node(v, one_of(v, "GlobalAveragePool", "GlobalMaxPool"), x)]
    extents = v.shape(x)[2:]
    kernel = _kernel(v, extents)
    window = _window(v, extents, kernel, dilated=False)
    if "auto_pad" not in window:
        window["ceil_mode"] = number(v, 0, 1)
    op = one_of(v, "MaxPool", "AveragePool", "LpPool")
    if op == "AveragePool":
        window["count_include_pad"] = number(v, 0, 1)
    if op == "LpPool":
        window.pop("ceil_mode", None)
    return [node(v, op, x, **window)]


@draws
def normalisation(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None:
        return None
    rank, op = len(v.shape(x)), one_of(v, "LayerNormalization", "InstanceNormalization", "GroupNormalization", "LRN")
    if op == "LayerNormalization":
        axis = number(v, 1, rank - 1)
        if not all(v.fixed(x, a) for a in range(axis, rank)):
            return None
        shape = v.shape(x)[axis:]
        bias = (weights(v, *shape, scale=1.0),) if chance(v, 0.7) else ()
        return [node(v, op, x, weights(v, *shape, scale=1.0), *bias, axis=signed(v, axis, rank))]
    if rank < 3 or not v.fixed(x, 1):
        return None
    channels = v.shape(x)[1]
    if op == "LRN":
        return [node(v, op, x, size=one_of(v, 1, 3, 5))]
    pair = [weights(v, channels, scale=1.0) for _ in range(2)]
    groups = [g for g in (1, 2, 3, 4) if channels % g == 0]
    return [node(v, op, x, *pair, num_groups=one_of(v, *groups) if op.startswith("Group") else None)]


@draws
def softmax(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None or (axis := fixed_axis(v, x)) is None:
        return None
    return [node(v, one_of(v, "Softmax", "LogSoftmax", "Hardmax"), x, axis=signed(v, axis, len(v.shape(x))))]


@draws
def reduction(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None:
        return None
    rank = len(v.shape(x))
    axes = [signed(v, a, rank) for a in range(0 if chance(v, 0.05) else 1, rank) if chance(v, 0.5)]
    if not axes:
        return None
    names = "Mean Sum Max Min Prod L1 L2 SumSquare LogSumExp"
    return [node(v, f"Reduce{one_of(v, *names.split())}", x, ints(v, *axes), keepdims=number(v, 0, 1))]


@draws
def arg(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 4))) is None or (axis := fixed_axis(v, x)) is None:
        return None
    return [node(v, one_of(v, "ArgMax", "ArgMin"), x, axis=axis, keepdims=number(v, 0, 1))]


@draws
def top_k(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 4))) is None or (axis := fixed_axis(v, x)) is None:
        return None
    k = number(v, 1, v.shape(x)[axis])
    values, places = v.fresh(), v.fresh()
    largest = number(v, 0, 1)
    return [helper.make_node("TopK", [x, ints(v, k)], [values, places], axis=axis, largest=largest)]


@draws
def cumulative(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 4))) is None or (axis := fixed_axis(v, x)) is None:
        return None
    to = v.constant(np.int64(axis))
    return [node(v, "CumSum", x, to, exclusive=number(v, 0, 1), reverse=number(v, 0, 1))]


@draws
def transpose(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 6))) is None:
        return None
    rank = len(v.shape(x))
    order = v.rng.permutation(rank) if chance(v, 0.25) else np.append(0, 1 + v.rng.permutation(rank - 1))
    return [node(v, "Transpose", x, perm=[int(axis) for axis in order])]


@draws
def reshape(v: Values) -> list[NodeProto] | None:
    """All axes but the first in another split, by -1, by 0, or by a shape computed at run time."""
    if (x := v.pick(rank=(2, 6))) is None or v.fixed(x, 0):
        return None
    shape = v.shape(x)
    if not all(v.fixed(x, axis) for axis in range(1, len(shape))):
        return None
    size = int(np.prod(shape[1:]))
    parts: list[int] = []
    while size > 1 and len(parts) < 3 and chance(v, 0.8):
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        parts.append(one_of(v, *divisors))
        size //= parts[-1]
    parts.append(size)
    way = one_of(v, "minus", "zero", "computed", "hole")
    if way in ("minus", "zero"):
        return [node(v, "Reshape", x, ints(v, -1 if way == "minus" else 0, *parts))]
    nodes = [node(v, "Shape", x)]
    nodes.append(node(v, "Gather", last(nodes), ints(v, 0), axis=0))
    if way == "hole":
        parts[number(v, 0, len(parts) - 1)] = -1
    nodes.append(node(v, "Concat", last(nodes), ints(v, *parts), axis=0))
    return [*nodes, node(v, "Reshape", x, last(nodes))]


@draws
def flatten(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None:
        return None
    return [node(v, "Flatten", x, axis=one_of(v, 1, 1, 2) if len(v.shape(x)) > 2 else 1)]


@draws
def squeeze(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None:
        return None
    ones = [axis for axis, extent in enumerate(v.shape(x)) if extent == 1 and v.fixed(x, axis)]
    if ones:
        return [node(v, "Squeeze", x, ints(v, one_of(v, *ones)))]
    return [node(v, "Unsqueeze", x, ints(v, number(v, 0 if chance(v, 0.1) else 1, len(v.shape(x)))))]


@draws
def concat(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None or (axis := fixed_axis(v, x)) is None:
        return None
    parts = [x]
    for _ in range(number(v, 1, 3)):
        parts.append(v.pick(rank=(len(v.shape(x)),) * 2) or x)
    fitting = [p for p in parts if all(a == axis or v.shape(p)[a] == v.shape(x)[a] for a in range(len(v.shape(x))))]
    if len(fitting) == 1:
        fitting.append(x)
    return [node(v, "Concat", *fitting, axis=signed(v, axis, len(v.shape(x))))]


@draws
def part(v: Values) -> list[NodeProto] | None:
    """Slices, with steps of both signs."""
    if (x := v.pick(rank=(2, 5), least=2)) is None or (axis := fixed_axis(v, x, 1)) is None:
        return None
    extent = v.shape(x)[axis]
    if chance(v, 0.3):
        return [node(v, "Slice", x, ints(v, -1), ints(v, -(1 << 40)), ints(v, axis), ints(v, number(v, -2, -1)))]
    begin = number(v, 0, extent - 1)
    end = one_of(v, number(v, begin + 1, extent), 1 << 40, -1 if begin < extent - 1 else extent)
    return [node(v, "Slice", x, ints(v, begin), ints(v, end), ints(v, axis), ints(v, number(v, 1, 2)))]


@draws
def split(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5), least=2)) is None or (axis := fixed_axis(v, x, 1)) is None:
        return None
    cut = number(v, 1, v.shape(x)[axis] - 1) if v.shape(x)[axis] > 1 else 0
    if not cut:
        return None
    names = [v.fresh(), v.fresh()]
    return [helper.make_node("Split", [x, ints(v, cut, v.shape(x)[axis] - cut)], names, axis=axis)]


@draws
def gather(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None or (axis := fixed_axis(v, x, 1)) is None:
        return None
    extent = v.shape(x)[axis]
    shape = one_of(v, (), (3,), (2, 2))
    indices = v.constant(v.rng.integers(-extent, extent, shape))
    return [node(v, "Gather", x, indices, axis=axis)]


@draws
def embedding(v: Values) -> list[NodeProto] | None:
    """Rows of a table; indices are below 10."""
    if (ids := v.pick(kind="i", rank=(1, 3))) is None:
        return None
    if chance(v, 0.2):
        return [node(v, "OneHot", ids, v.constant(np.int64(10)), v.constant(np.array([0, 1], np.float32)))]
    return [node(v, "Gather", weights(v, 10, number(v, 1, 20), scale=1.0), ids)]


@draws
def gather_elements(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 4))) is None or (axis := fixed_axis(v, x)) is None:
        return None
    found = [helper.make_node("TopK", [x, ints(v, 1)], ["", v.fresh()], axis=axis)]
    return [*found, node(v, "GatherElements", x, found[-1].output[1], axis=axis)]


@draws
def pad(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5), least=2)) is None:
        return None
    rank = len(v.shape(x))
    pads = [0 if axis == 0 or not v.fixed(x, axis) else number(v, 0, 1) for axis in range(rank)]
    pads += [0 if axis == 0 or not v.fixed(x, axis) else number(v, 0, 1) for axis in range(rank)]
    mode = one_of(v, "constant", "reflect", "edge", "wrap")
    value = (v.constant(np.float32(1.5)),) if mode == "constant" and chance(v, 0.5) else ()
    return [node(v, "Pad", x, ints(v, *pads), *value, mode=mode)]


@draws
def resize(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(3, 5))) is None:
        return None
    spatial = len(v.shape(x)) - 2
    mode = one_of(v, "nearest", "linear", "cubic") if spatial == 2 else one_of(v, "nearest", "linear")
    scale = v.constant(np.array([1, 1, *(one_of(v, 2.0, 3.0, 0.5, 1.5) for _ in range(spatial))], np.float32))
    way = one_of(v, "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    rounding = one_of(v, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil") if mode == "nearest" else None
    return [node(v, "Resize", x, "", scale, mode=mode, coordinate_transformation_mode=way, nearest_mode=rounding)]


@draws
def shuffle(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(4, 4))) is None:
        return None
    channels, height, width = v.shape(x)[1:]
    if channels % 4 == 0 and chance(v, 0.6):
        return [node(v, "DepthToSpace", x, blocksize=2, mode=one_of(v, "DCR", "CRD"))]
    return [node(v, "SpaceToDepth", x, blocksize=2)] if height % 2 == width % 2 == 0 else None


@draws
def tile(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 4))) is None:
        return None
    return [node(v, "Tile", x, ints(v, 1, *(number(v, 1, 2) for _ in v.shape(x)[1:])))]


@draws
def expand(v: Values) -> list[NodeProto] | None:
    """Of a value, or of a constant to the shape that the batch gives."""
    if (x := v.pick(rank=(2, 4))) is None:
        return None
    nodes = [node(v, "Shape", x)]
    if chance(v, 0.5):
        nodes.append(node(v, "Gather", last(nodes), ints(v, 0)))
        nodes.append(node(v, "Concat", last(nodes), ints(v, number(v, 1, 4)), axis=0))
        if chance(v, 0.5):
            return [*nodes, node(v, "ConstantOfShape", last(nodes))]
        return [*nodes, node(v, "Expand", weights(v, 1, 1), last(nodes))]
    return [*nodes, node(v, "Expand", weights(v, *v.shape(x)[-1:]), last(nodes))] if v.fixed(x, -1) else None


@draws
def triangle(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(3, 4))) is None:
        return None
    return [node(v, "Trilu", x, upper=number(v, 0, 1))]


@draws
def einsum(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(3, 3))) is None or not v.fixed(x, 2) or not v.fixed(x, 1):
        return None
    _, rows, inner = v.shape(x)
    if chance(v, 0.5):
        return [node(v, "Einsum", x, weights(v, inner, 2, 5), equation="blk,khd->bhld")]
    return [
        node(v, "Einsum", x, weights(v, rows, inner), equation=one_of(v, "blk,lk->bl", "blk,lk->bk", "blk,lk->blk"))
    ]


@draws
def recurrent(v: Values) -> list[NodeProto] | None:
    """Over a sequence of rows, batch first as exporters write it: transposed before and after."""
    if (x := v.pick(rank=(3, 3))) is None or not v.fixed(x, 1) or not v.fixed(x, 2) or v.fixed(x, 0):
        return None
    size, hidden = v.shape(x)[2], number(v, 1, 12)
    op, gates = one_of(v, ("LSTM", 4), ("GRU", 3), ("RNN", 1))
    both = chance(v, 0.4)
    way = 2 if both else 1
    nodes = [node(v, "Transpose", x, perm=[1, 0, 2])]
    inputs = [last(nodes), weights(v, way, gates * hidden, size, scale=0.3)]
    inputs.append(weights(v, way, gates * hidden, hidden, scale=0.3))
    if chance(v, 0.7):
        inputs.append(weights(v, way, 2 * gates * hidden, scale=0.3))
    more = {"linear_before_reset": number(v, 0, 1)} if op == "GRU" else {}
    direction = "bidirectional" if both else one_of(v, "forward", "reverse")
    nodes.append(node(v, op, *inputs, hidden_size=hidden, direction=direction, **more))
    nodes.append(node(v, "Transpose", last(nodes), perm=[2, 0, 1, 3]))
    return [*nodes, node(v, "Reshape", last(nodes), ints(v, 0, 0, -1))]


@draws
def prelu(v: Values) -> list[NodeProto] | None:
    if (x := v.pick(rank=(2, 5))) is None or not v.fixed(x, 1):
        return None
    shape = [v.shape(x)[1], *[1] * (len(v.shape(x)) - 2)]
    return [node(v, "PRelu", x, weights(v, *shape, scale=0.3))]


@draws
def gate(v: Values) -> list[NodeProto] | None:
    """Squeeze and excitation: a mean over places scales channels."""
    if (x := v.pick(rank=(4, 4))) is None or not v.fixed(x, 1):
        return None
    channels = v.shape(x)[1]
    nodes = [node(v, "GlobalAveragePool", x)]
    nodes.append(node(v, "Conv", last(nodes), weights(v, channels, channels, 1, 1)))
    nodes.append(node(v, one_of(v, "Sigmoid", "HardSigmoid"), last(nodes)))
    return [*nodes, node(v, "Mul", *one_of(v, (x, last(nodes)), (last(nodes), x)))]
