"""Attention: softmax(Q K^T * scale + mask) V of all heads, as a layer on rows of heads side by side.

The transposes that split and merge heads vanish into the layer's addressing, and where the three projections read one
tensor, they are one product with their weights side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.sequence import AttentionParameters
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.matmul import DenseLayer, multiplies_in_bf16
from veltair.compiler.patterns.sequence.attention_heads import find_heads
from veltair.compiler.patterns.sequence.head_rows import HeadRows, only_read_inside
from veltair.compiler.patterns.sequence.nan_guard import is_kept, match_nan_guard
from veltair.compiler.patterns.sequence.window_masks import match_window_mask

MERGE = [0, 2, 1, 3]  # (image, head, token, d) to tokens first


@dataclass(frozen=True, slots=True)
class Projection:
    """A dense layer with a bias: `x @ weight + bias`.

    >>> Projection("x", "w", "b", "q", ()).output
    'q'
    """

    x: str
    weight: str
    bias: str
    output: str
    nodes: tuple[onnx.NodeProto, ...]


@dataclass(frozen=True, slots=True)
class JoinedProjections:
    """Projections of one tensor that are one product.

    >>> query, key, value = (Projection("x", f"w{i}", f"b{i}", f"y{i}", ()) for i in range(3))
    >>> len(JoinedProjections((query, key, value)).projections)
    3
    """

    projections: tuple[Projection, ...]


@dataclass(frozen=True, slots=True)
class AttentionMatch:
    """The nodes of an attention, from its split heads to its merged rows.

    >>> query, key, value = (HeadRows("qkv", 2304, i * 768, ()) for i in range(3))
    >>> AttentionMatch((query, key, value), 12, 0.125, "", "rows", (), ()).heads
    12
    """

    sources: tuple[HeadRows, HeadRows, HeadRows]  # where Q, K and V lie
    heads: int
    scale: float
    mask: str  # what is added to the scores; empty where nothing is
    output: str  # the merged rows
    inner: tuple[onnx.NodeProto, ...]  # all nodes but the last product
    projections: tuple[Projection, ...]  # three that can be one product, or none
    mask_values: NDArray[np.float32] | None = None  # in the place of `mask`: of windows, which repeat with the images


def find_attention(view: ModelView) -> Matches:
    """Match every attention at its last product, and its three projections at the first of their nodes."""
    matches = view.matches.union(Matches())
    view = replace(view, matches=matches)  # an attention sees those before it
    for node in view.nodes:
        if node.op_type != "Softmax":
            continue
        guard = match_nan_guard(node, view)
        end = view.only_user(guard[-1].output[0] if guard else node.output[0])
        if end is not None and (found := _match_attention(node, guard, end, view)) is not None:
            matches.add(end, found, found.inner)
            if found.projections:
                nodes = [node for projection in found.projections for node in projection.nodes]
                first = next(node for node in view.nodes if any(node is inner for inner in nodes))
                joined = JoinedProjections(found.projections)
                matches.add(first, joined, [node for node in nodes if node is not first])
    return matches


def projections(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """Three projections of one tensor as one product."""
    joined = view.matches.at(node, JoinedProjections)
    if joined is None:
        return False
    found = joined.projections
    constants = view.constants
    weight = np.concatenate([constants[p.weight] for p in found], axis=1)
    bias = np.concatenate([constants[p.bias].reshape(-1) for p in found])
    shape = view.shape_of(found[0].x)
    rows = product_of(shape[:-1])
    narrow = multiplies_in_bf16(rows, view)
    y = Activation(_joined_name(found), "uint16" if narrow else "float32", (rows, weight.shape[1]))
    DenseLayer(node.name, found[0].x, y, weight, bias, "none").emit(view, builder)
    return True


def attention(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    found = view.matches.at(node, AttentionMatch)
    if found is None:
        return False
    images, heads, tokens, keys = view.shape_of(node.input[0])
    width = view.shape_of(found.output)[-1]
    if found.projections:
        inputs = [builder.tensor(_joined_name(found.projections))]
        places = tuple((0, i * width) for i in range(3))
    else:
        sides = [
            builder.reshape(builder.rows(side.source), (images * extent * _heads_as_rows(side, heads), side.width))
            for side, extent in zip(found.sources, (tokens, keys, keys), strict=True)
        ]
        if len({side.dtype for side in sides}) > 1 or multiplies_in_bf16(images * tokens, view):
            sides = [builder.to_bf16(side) for side in sides]
        inputs = list(dict.fromkeys(sides))
        places = tuple((inputs.index(x), side.column) for x, side in zip(sides, found.sources, strict=True))
    weights: dict[str, NDArray[Any]] = {}
    mask = found.mask_values if found.mask_values is not None else view.constants.get(found.mask)
    if mask is not None:
        weights["mask"] = np.asarray(mask, np.float32).reshape((1,) * (4 - mask.ndim) + mask.shape)
    elif found.mask:
        inputs.append(builder.to_row_major(found.mask))
    query, key, value = found.sources
    parameters = AttentionParameters(
        heads=heads,
        width=width // heads,
        tokens=tokens,
        keys=keys,
        scale=found.scale,
        places=places,
        masked=bool(found.mask) or found.mask_values is not None,
        group=found.sources[1].group,
        heads_first=(query.heads_first, key.heads_first, value.heads_first),
    )
    rows = images * tokens
    y = Activation(f"{found.output}/rows", inputs[0].dtype, (rows, width))
    flops = 4 * abs(rows) * keys * width
    builder.emit(node.name, "attention", inputs, [y], parameters, weights, flops)
    builder.alias(Activation(found.output, y.dtype, view.shape_of(found.output)), y.name)
    return True


def _heads_as_rows(side: HeadRows, heads: int) -> int:
    """Rows of a token, each of one head: 1 where heads lie side by side in a row."""
    return heads // side.group if side.heads_first else 1


def _joined_name(found: tuple[Projection, ...]) -> str:
    return "+".join(projection.output for projection in found)


def _match_attention(
    softmax: onnx.NodeProto, guard: tuple[onnx.NodeProto, ...], mix: onnx.NodeProto, view: ModelView
) -> AttentionMatch | None:
    """The attention whose softmax and last product these are; None where they are of none.

    guard: the nodes that put zeros in the place of the softmax's NaNs, if there are any.
    """
    likely = guard[-1].output[0] if guard else softmax.output[0]
    shape = view.shape_of(softmax.output[0])
    if len(shape) != 4 or attribute(softmax, "axis", -1) not in (-1, 3) or mix.op_type != "MatMul":
        return None
    if mix.input[0] != likely or min(shape[1:]) < 1:
        return None
    windows = match_window_mask(softmax.input[0], view)
    before = _match_scores(windows.scores if windows else softmax.input[0], view)
    merge = view.only_user(mix.output[0])
    if before is None or merge is None or merge.op_type != "Transpose" or attribute(merge, "perm", []) != MERGE:
        return None
    product, scale, mask, inner = before
    merged = view.only_user(merge.output[0])
    heads, width = shape[1], view.shape_of(mix.output[0])[-1]
    images = view.shape_of(mix.output[0])[0]
    if merged is None or merged.op_type != "Reshape" or width % 16:
        return None
    rows = view.shape_of(merged.output[0])
    if rows[-1:] != (heads * width,) or product_of(rows) != images * shape[2] * heads * width:
        return None
    if mask and not _broadcasts(view.values[mask].shape, shape):
        return None
    if guard and (windows or not is_kept(mask, view)):
        return None
    values = windows.joined(view.constants.get(mask)) if windows and (not mask or mask in view.constants) else None
    if windows and values is None:
        return None
    (query, query_scale, *query_nodes), (key, key_scale, *key_nodes) = (_unscale(name, view) for name in product.input)
    if [view.shape_of(name) for name in (query, key, mix.input[1])] != [
        (images, heads, shape[2], width),
        (images, heads, width, shape[3]),
        (images, heads, shape[3], width),
    ]:
        return None
    sides = [find_heads(query, view), find_heads(key, view, turned=True), find_heads(mix.input[1], view)]
    found = [side for side in sides if side is not None]
    if len(found) < 3 or found[0].group > 1 or found[1].group != found[2].group:
        return None
    sources = (found[0], found[1], found[2])
    core = (*inner, product, softmax, *guard, merge, merged, *query_nodes, *key_nodes)
    core = (*core, *windows.nodes) if windows else core
    views = only_read_inside((node for side in sources for node in side.nodes), (*core, mix), view)
    nodes = (*core, *views)
    if not all(map(view.matches.is_free, (*nodes, mix))):
        return None
    scale *= query_scale * key_scale
    plain = not any(side.heads_first or side.group > 1 for side in sources)
    whole = plain and {side.width for side in sources} == {heads * width}
    joined = _match_projections(sources, nodes, view) if whole else ()
    return AttentionMatch(sources, heads, scale, mask, merged.output[0], nodes, joined, values)


def _match_scores(name: str, view: ModelView) -> tuple[onnx.NodeProto, float, str, list[onnx.NodeProto]] | None:
    """What a softmax reads: the product, its scale, the mask that is added, and the nodes between."""
    nodes: list[onnx.NodeProto] = []
    node, mask, scale = view.makers.get(name), "", 1.0
    if node is not None and node.op_type == "Add" and view.only_user(name) is not None:
        shape = view.shape_of(name)
        sides = [i for i, other in enumerate(node.input) if _is_scores(view.makers.get(other), shape, view)]
        if len(sides) != 1:
            return None
        nodes.append(node)
        name, mask = node.input[sides[0]], node.input[1 - sides[0]]
        node = view.makers.get(name)
    if node is not None and node.op_type in ("Div", "Mul") and view.only_user(name) is not None:
        factor = view.constants.get(node.input[1])
        if factor is None or factor.size != 1:
            return None
        nodes.append(node)
        scale = float(factor.reshape(())) if node.op_type == "Mul" else 1 / float(factor.reshape(()))
        name = node.input[0]
        node = view.makers.get(name)
    if node is None or node.op_type != "MatMul" or view.only_user(name) is None or scale <= 0:
        return None
    return node, scale, mask, nodes


def _unscale(name: str, view: ModelView) -> tuple[Any, ...]:
    """What a side of the scores' product is before it is scaled, the factor, and the node that scales, if one does.

    Exporters of PyTorch's `scaled_dot_product_attention` write the root of the scale on both sides.
    """
    node = view.makers.get(name)
    if node is None or node.op_type != "Mul" or view.only_user(name) is None:
        return name, 1.0
    factors = [i for i, other in enumerate(node.input) if (c := view.constants.get(other)) is not None and c.size == 1]
    if len(factors) != 1 or view.shape_of(node.input[1 - factors[0]]) != view.shape_of(name):
        return name, 1.0
    factor = float(view.constants[node.input[factors[0]]].reshape(()))
    return (node.input[1 - factors[0]], factor, node) if factor > 0 else (name, 1.0)


def _is_scores(node: onnx.NodeProto | None, shape: tuple[int, ...], view: ModelView) -> bool:
    return node is not None and node.op_type in ("MatMul", "Div", "Mul") and view.shape_of(node.output[0]) == shape


def _broadcasts(mask: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    padded = (1,) * (4 - len(mask)) + tuple(mask)
    return len(padded) == 4 and padded[3] == shape[3] and all(m in (1, s) for m, s in zip(padded, shape, strict=True))


def _match_projections(
    sources: tuple[HeadRows, ...], inner: tuple[onnx.NodeProto, ...], view: ModelView
) -> tuple[Projection, ...]:
    """The three dense layers that make the sources, if one product can replace them; else none."""
    found = []
    for name in (side.source for side in sources):
        add, reader = view.makers.get(name), view.only_user(name)
        if add is None or add.op_type != "Add" or not any(reader is node for node in inner):
            return ()
        bias = next((i for i in add.input if i in view.constants), "")
        product = view.makers.get(next((i for i in add.input if i != bias), ""))
        if not bias or product is None or product.op_type != "MatMul" or product.input[1] not in view.constants:
            return ()
        if not (view.matches.is_free(product) and view.matches.is_free(add)):  # of integers
            return ()
        width = view.shape_of(name)[-1]
        if view.only_user(product.output[0]) is None or view.constants[bias].size != width:
            return ()
        found.append(Projection(product.input[0], product.input[1], bias, name, (product, add)))
    shapes = {view.constants[p.weight].shape for p in found}
    return tuple(found) if len({p.x for p in found}) == 1 == len(shapes) else ()
