"""What moves, picks and repeats elements."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from bench.random_graphs.drawing import (
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
    if not fixed_behind(v, x):
        return None
    size = int(np.prod(v.shape(x)[1:]))
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
