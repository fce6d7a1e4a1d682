"""Q, K or V of an attention: where its heads lie, and how many heads of Q share one of them.

Rotary embeddings turn Q and K behind the transposition that splits heads, so that what comes out holds heads one after
the other and not side by side in rows; the layer reads it as it is. Grouped heads (Llama, Mistral, Qwen) repeat each
head of K and V for its group; the layer reads the one that there is.
"""

from __future__ import annotations

from dataclasses import replace

import onnx

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.patterns.sequence.head_rows import HeadRows, find_head_rows

LANES = 16  # a head begins at a multiple of so many columns
TURN = [0, 1, 3, 2]


def find_heads(name: str, view: ModelView, *, turned: bool = False) -> HeadRows | None:
    """Where the heads of a tensor (images, heads, tokens, d) lie; None where a layer cannot read them.

    turned: whether the tensor is (images, heads, d, tokens).
    """
    found = find_head_rows(name, view, turned=turned)
    if found is not None and found.column % LANES == 0:
        return found
    node = view.makers.get(name)
    if name in view.constants or (node is not None and view.matches.is_inner(node)):
        return None
    if turned:
        if node is None or node.op_type != "Transpose" or attribute(node, "perm", []) != TURN:
            return None
        plain = find_heads(node.input[0], view)
        return None if plain is None else replace(plain, nodes=(*plain.nodes, node))
    if (repeat := _match_repeat(node, view)) is not None:
        source, group, nodes = repeat
        shared = find_heads(source, view)
        return None if shared is None else replace(shared, group=shared.group * group, nodes=(*shared.nodes, *nodes))
    return HeadRows(name, view.shape_of(name)[-1], 0, (), heads_first=True)


def _match_repeat(last: onnx.NodeProto | None, view: ModelView) -> tuple[str, int, tuple[onnx.NodeProto, ...]] | None:
    """The heads that a Reshape repeats side by side, how often, and the nodes; None where it does not.

    (images, h, tokens, d) -> (images, h, 1, tokens, d) -> (images, h, g, tokens, d) -> (images, h * g, tokens, d).
    """
    expand = view.makers.get(last.input[0]) if last is not None and last.op_type == "Reshape" else None
    if last is None or expand is None or expand.op_type not in ("Expand", "Tile"):
        return None
    first = view.makers.get(expand.input[0])
    if first is None or first.op_type not in ("Unsqueeze", "Reshape"):
        return None
    source, single, wide, given = (
        view.shape_of(name) for name in (first.input[0], expand.input[0], expand.output[0], last.output[0])
    )
    if len(source) != 4 or len(wide) != 5:
        return None
    images, heads, tokens, d = source
    group = wide[2]
    shapes = ((images, heads, 1, tokens, d), (images, heads, group, tokens, d), (images, heads * group, tokens, d))
    return (first.input[0], group, (first, expand, last)) if (single, wide, given) == shapes else None
