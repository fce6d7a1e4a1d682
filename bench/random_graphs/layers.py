"""What networks compute with: products, convolutions, pools, normalisations, reductions, recurrences."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from bench.random_graphs.drawing import (
    ACTIVATIONS,
    Values,
    chance,
    draws,
    fixed_axis,
    fixed_behind,
    ints,
    last,
    node,
    number,
    one_of,
    signed,
    weights,
)


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
    if (x := v.pick(rank=(3, 5))) is None or not fixed_behind(v, x):
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
    if (x := v.pick(rank=(3, 5))) is None or not fixed_behind(v, x):
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
    if (x := v.pick(rank=(3, 5))) is None or not fixed_behind(v, x):
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
def gate(v: Values) -> list[NodeProto] | None:
    """Squeeze and excitation: a mean over places scales channels."""
    if (x := v.pick(rank=(4, 4))) is None or not v.fixed(x, 1):
        return None
    channels = v.shape(x)[1]
    nodes = [node(v, "GlobalAveragePool", x)]
    nodes.append(node(v, "Conv", last(nodes), weights(v, channels, channels, 1, 1)))
    nodes.append(node(v, one_of(v, "Sigmoid", "HardSigmoid"), last(nodes)))
    return [*nodes, node(v, "Mul", *one_of(v, (x, last(nodes)), (last(nodes), x)))]
