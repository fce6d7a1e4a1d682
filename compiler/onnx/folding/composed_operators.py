"""Operators of ONNX that stand for several others, such as those that exporters write from operator set 23 on.

Made of these, they are what all else knows: patterns see the attention, and the proof of padding its softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto

from veltair.compiler.onnx.folding.expansion import Expansion, PartsOfNode
from veltair.compiler.onnx.node_evaluation import Shape, TensorType

Types: TypeAlias = Mapping[str, Sequence[TensorType]]  # of the node's inputs: at each sample batch size
LOWEST = float(np.finfo(np.float32).min)


def expand_composed(node: onnx.NodeProto, types: Types) -> Expansion | None:
    """Other nodes that make the outputs of a composed one under their names, and their constants; None where there are
    none that do: ONNX Runtime runs it then.

    >>> x = [TensorType(TensorProto.FLOAT, (7, 4))]
    >>> node = onnx.helper.make_node("RMSNormalization", ["x", "w"], ["y"], name="n")
    >>> [each.op_type for each in expand_composed(node, {"x": x, "w": x})[0]]
    ['Mul', 'ReduceMean', 'Add', 'Sqrt', 'Reciprocal', 'Mul', 'Mul']
    """
    if node.domain not in ("", "ai.onnx") or node.op_type not in _EXPANSIONS:
        return None
    if any(name not in types for name in node.input if name) or types[node.input[0]][0].kind != TensorProto.FLOAT:
        return None
    shapes = {name: _own_extents(kinds) for name, kinds in types.items()}
    kinds = {name: known[0].kind for name, known in types.items()}
    parts = _Parts(node, shapes, kinds)
    return (parts.nodes, parts.constants) if _EXPANSIONS[node.op_type](parts) else None


def _own_extents(types: Sequence[TensorType]) -> Shape:
    """The shape with -1 for extents that differ between the samples; empty where it is not known."""
    known = [kind.shape for kind in types if kind.shape is not None]
    if len(known) < len(types):
        return ()
    return tuple(extents[0] if len(set(extents)) == 1 else -1 for extents in zip(*known, strict=True))


class _Parts(PartsOfNode):
    """What a node becomes. shapes: of its inputs, as `_own_extents` has them; kinds: their element types."""

    def __init__(self, node: onnx.NodeProto, shapes: Mapping[str, Shape], kinds: Mapping[str, int]) -> None:
        super().__init__(node)
        self.shapes, self.kinds = shapes, kinds

    def shape(self, place: int) -> Shape:
        return self.shapes.get(self.input(place), ())

    def whole_numbers(self, *values: int) -> str:
        return self.array(np.array(values, np.int64))


def _rms_norm(parts: _Parts) -> bool:
    x, rank = parts.input(0), len(parts.shape(0))
    if not rank:
        return False
    axes = parts.whole_numbers(*range(parts.given("axis", -1) % rank, rank))
    mean = parts.add("ReduceMean", [parts.add("Mul", [x, x]), axes], keepdims=1)
    deviation = parts.add("Sqrt", [parts.add("Add", [mean, parts.number(parts.given("epsilon", 1e-5))])])
    scaled = parts.add("Mul", [x, parts.add("Reciprocal", [deviation])])
    parts.add("Mul", [scaled, parts.input(1)], parts.fused.output[0])
    return True


def _instance_norm(parts: _Parts) -> bool:
    """Each channel of an image is a row that is normalised; then scale and bias of its channel."""
    shape = parts.shape(0)
    if len(shape) < 3 or min(shape[1:]) < 1:
        return False
    ones = parts.array(np.ones(shape[2:], np.float32))
    normal = parts.add("LayerNormalization", [parts.input(0), ones], axis=2, epsilon=parts.given("epsilon", 1e-5))
    column = parts.whole_numbers(shape[1], *(1 for _ in shape[2:]))
    scale, bias = (parts.add("Reshape", [parts.input(place), column]) for place in (1, 2))
    parts.add("Add", [parts.add("Mul", [normal, scale]), bias], parts.fused.output[0])
    return True


def _attention(parts: _Parts) -> bool:
    """softmax(Q K^T scale + mask) V; each root of the scale on one side, as exporters write it below set 23."""
    node, ranks = parts.fused, [len(parts.shape(place)) for place in range(3)]
    unusual = parts.given("softcap", 0.0) or parts.given("softmax_precision", TensorProto.FLOAT) != TensorProto.FLOAT
    if unusual or any(node.output[3:4]) or parts.input(6) or ranks not in ([3, 3, 3], [4, 4, 4]):
        return False
    heads, shared = parts.given("q_num_heads", 0), parts.given("kv_num_heads", 0)
    if ranks[0] == 4:
        heads, shared = parts.shape(0)[1], parts.shape(1)[1]
    if heads < 1 or shared < 1 or heads % shared or (parts.input(4) and len(parts.shape(4)) != 4):
        return False
    tokens, keys = parts.shape(0)[-2], parts.shape(1)[-2] + (parts.shape(4)[2] if parts.input(4) else 0)
    width, value_width = parts.shape(0)[-1], parts.shape(2)[-1]
    if ranks[0] == 3:
        width, value_width = width // heads, value_width // shared
    mask = parts.shape(3)
    if (parts.input(3) and (len(mask) < 2 or mask[-1] not in (1, keys))) or min(tokens, keys, width) < 1:
        return False
    query, key, value = (_heads_first(parts, place, count) for place, count in enumerate((heads, shared, shared)))
    key, value = _behind_past(parts, key, 1), _behind_past(parts, value, 2)
    if heads > shared:
        key, value = _repeated(parts, key, heads, shared, width), _repeated(parts, value, heads, shared, value_width)
    root = parts.number(math.sqrt(parts.given("scale", 0.0) or 1 / math.sqrt(width)))
    turned = parts.add("Transpose", [key], perm=[0, 1, 3, 2])
    scores = parts.add("MatMul", [parts.add("Mul", [query, root]), parts.add("Mul", [turned, root])])
    added = _mask(parts, tokens, keys)
    weights = parts.add("Softmax", [parts.add("Add", [scores, added]) if added else scores], axis=-1)
    if parts.input(3):  # a row whose keys are all hidden gives zeros
        weights = parts.add("Where", [parts.add("IsNaN", [weights]), parts.number(0.0), weights])
    _as_given(parts, "MatMul", [weights, value])
    return True


def _rotary_embedding(parts: _Parts) -> bool:
    """Each pair of columns turned by its position's angle: x cos + (-x2, x1) sin."""
    shape, heads, ids = parts.shape(0), parts.given("num_heads", 0), parts.input(3)
    if len(shape) not in (3, 4) or len(parts.shape(1)) != (2 if ids else 3) or (len(shape) == 3 and heads < 1):
        return False
    width = shape[-1] if len(shape) == 4 else shape[-1] // heads
    turned = parts.given("rotary_embedding_dim", 0) or width
    if turned < 2 or turned % 2 or turned > width or any(parts.shape(i)[-1] != turned // 2 for i in (1, 2)):
        return False
    x = _heads_first(parts, 0, heads)
    apart = parts.given("interleaved", 0)
    first = x if turned == width else _columns(parts, x, 0, turned)
    sides = [
        _columns(
            parts, first, side if apart else side * turned // 2, turned if apart or side else turned // 2, 1 + apart
        )
        for side in (0, 1)
    ]
    angles = []
    for place in (1, 2):
        angle = parts.input(place) if not ids else parts.add("Gather", [parts.input(place), ids], axis=0)
        single = parts.add("Unsqueeze", [angle, parts.whole_numbers(1)])  # of every head
        angles.append(_joined(parts, [single, single], turned))
    swapped = _joined(parts, [parts.add("Neg", [sides[1]]), sides[0]], turned)
    terms = [parts.add("Mul", [first, angles[0]]), parts.add("Mul", [swapped, angles[1]])]
    if turned == width:
        _as_given(parts, "Add", terms)
    else:
        _as_given(parts, "Concat", [parts.add("Add", terms), _columns(parts, x, turned, width)], axis=-1)
    return True


def _columns(parts: _Parts, x: str, begin: int, end: int, step: int = 1) -> str:
    return parts.add("Slice", [x, *(parts.whole_numbers(n) for n in (begin, end, -1, step))])


def _joined(parts: _Parts, halves: Sequence[str], width: int) -> str:
    """Halves of the last axis, one behind the other or column by column."""
    if not parts.given("interleaved", 0):
        return parts.add("Concat", halves, axis=-1)
    columns = [parts.add("Unsqueeze", [half, parts.whole_numbers(-1)]) for half in halves]
    return parts.add("Reshape", [parts.add("Concat", columns, axis=-1), parts.whole_numbers(0, 0, 0, width)])


def _as_given(parts: _Parts, op: str, inputs: Sequence[str], **attributes: Any) -> None:
    """Add the node that makes the first output, which has its heads in rows where the first input has."""
    output = parts.fused.output[0]
    if len(parts.shape(0)) == 4:
        parts.add(op, inputs, output, **attributes)
        return
    merged = parts.add("Transpose", [parts.add(op, inputs, **attributes)], perm=[0, 2, 1, 3])
    parts.add("Reshape", [merged, parts.whole_numbers(0, 0, -1)], output)


def _heads_first(parts: _Parts, place: int, heads: int) -> str:
    """The input as (images, heads, tokens, width)."""
    if len(parts.shape(place)) == 4:
        return parts.input(place)
    split = parts.add("Reshape", [parts.input(place), parts.whole_numbers(0, 0, heads, -1)])
    return parts.add("Transpose", [split], perm=[0, 2, 1, 3])


def _behind_past(parts: _Parts, side: str, place: int) -> str:
    """K or V behind those of tokens before, which an output gives as well."""
    present = parts.fused.output[place] if len(parts.fused.output) > place else ""
    if past := parts.input(3 + place):
        return parts.add("Concat", [past, side], present, axis=2)
    if present:
        parts.add("Identity", [side], present)
    return side


def _repeated(parts: _Parts, side: str, heads: int, shared: int, width: int) -> str:
    """Each head of K or V as often as heads of Q share it."""
    single = parts.add("Unsqueeze", [side, parts.whole_numbers(2)])
    wide = parts.add("Expand", [single, parts.whole_numbers(1, 1, heads // shared, 1, 1)])
    return parts.add("Reshape", [wide, parts.whole_numbers(0, heads, -1, width)])


def _mask(parts: _Parts, tokens: int, keys: int) -> str:
    """What is added to the scores; empty where nothing is. ONNX Runtime takes the lowest float for -infinity."""
    mask, past = parts.input(3), parts.shape(4)[2] if parts.input(4) else 0
    seen = np.tril(np.ones((tokens, keys), bool), past) if parts.given("is_causal", 0) else None
    hidden = parts.number(-math.inf)
    if not mask:
        return "" if seen is None else parts.array(np.where(seen, 0, -math.inf).astype(np.float32))
    if parts.kinds[mask] == TensorProto.BOOL:
        both = mask if seen is None else parts.add("And", [mask, parts.array(seen)])
        return parts.add("Where", [both, parts.number(0.0), hidden])
    lowest = parts.add("LessOrEqual", [mask, parts.number(LOWEST)])
    added = parts.add("Where", [lowest, hidden, mask])
    return added if seen is None else parts.add("Where", [parts.array(seen), added, hidden])


_EXPANSIONS: dict[str, Callable[[_Parts], bool]] = {
    "Attention": _attention,
    "InstanceNormalization": _instance_norm,
    "RMSNormalization": _rms_norm,
    "RotaryEmbedding": _rotary_embedding,
}
