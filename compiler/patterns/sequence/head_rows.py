"""Where the heads of an attention lie in memory.

Exporters take Q, K and V out of rows by views of many spellings: a Reshape and a Transpose for each of them, or one
Reshape of a joint product that Slice, Split or Gather takes apart before or behind its Transpose. What counts is which
place each element comes from, and the strides of a numpy view tell it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute
from veltair.profiles.artifact.manifest import shape_at

SAMPLES = (2, 3)  # batch sizes at which places are worked out: what is the same at both does not depend on them
RESHAPES = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
PIECES = ("Slice", "Split", "Gather")
Array = NDArray[Any]
Step: TypeAlias = tuple[onnx.NodeProto, str]  # a view, and the one of its outputs that is meant


@dataclass(frozen=True, slots=True)
class HeadRows:
    """Rows (images * tokens, width) that hold heads side by side, or with heads first (images * heads * tokens, width).

    >>> HeadRows("qkv", 2304, 768, ()).column
    768
    """

    source: str  # the tensor whose memory the rows are
    width: int
    column: int  # of the first head
    nodes: tuple[onnx.NodeProto, ...]  # the views between the source and the heads
    heads_first: bool = False
    group: int = 1  # heads of the tensor that are one and the same of the source


def find_head_rows(name: str, view: ModelView, *, turned: bool = False) -> HeadRows | None:
    """The rows that a tensor of heads (images, heads, tokens, d) lies in, as early as there are some; else None.

    turned: whether the tensor is (images, heads, d, tokens).
    """
    found, steps = None, list[Step]()
    for step in _views_back(name, view):
        steps.insert(0, step)
        places = {_place(steps, view, batch, turned=turned) for batch in SAMPLES}
        if len(places) == 1 and (place := places.pop()) is not None:
            found = HeadRows(step[0].input[0], *place, tuple(node for node, _ in steps))
    return found


def only_read_inside(
    candidates: Iterable[onnx.NodeProto], inside: Sequence[onnx.NodeProto], view: ModelView
) -> list[onnx.NodeProto]:
    """Those of the candidates that nothing needs once the nodes `inside` are gone."""
    gone, left = {id(node) for node in inside}, {id(node): node for node in candidates}
    found = list[onnx.NodeProto]()
    while free := [node for node in left.values() if _only_gone_read(node, gone, view)]:
        for node in free:
            found.append(left.pop(id(node)))
            gone.add(id(node))
    return found


def _only_gone_read(node: onnx.NodeProto, gone: set[int], view: ModelView) -> bool:
    return all(
        name not in view.output_names and all(id(user) in gone for user in view.users_of(name)) for name in node.output
    )


def _views_back(name: str, view: ModelView) -> Iterator[Step]:
    """The nodes that only view what they read, from a tensor's maker back, each with the output that is meant."""
    while (node := view.makers.get(name)) is not None and node.op_type in (*RESHAPES, *PIECES, "Transpose"):
        source, *others = node.input
        if source in view.constants or any(other and other not in view.constants for other in others):
            return
        if not view.matches.is_free(node):
            return
        yield node, name
        name = source


def _place(steps: Sequence[Step], view: ModelView, batch: int, *, turned: bool) -> tuple[int, int] | None:
    """Width and first column of the rows, if at this batch size what the steps give are heads in rows."""
    base = np.empty(shape_at(view.shape_of(steps[0][0].input[0]), batch), np.int8)  # nothing touches its memory
    heads = base
    for node, name in steps:
        viewed = _viewed(node, name, heads, shape_at(view.shape_of(name), batch), view)
        if viewed is None:
            return None
        heads = viewed
    heads = heads.swapaxes(2, 3) if turned else heads
    images, count, tokens, d = heads.shape
    width, rest = divmod(base.size, images * tokens)
    column = int(heads.__array_interface__["data"][0] - base.__array_interface__["data"][0])
    strides = zip(heads.shape, heads.strides, (tokens * width, d, width, 1), strict=True)
    if rest or column + count * d > width or any(extent > 1 and found != wanted for extent, found, wanted in strides):
        return None
    return width, column


def _viewed(node: onnx.NodeProto, name: str, x: Array, shape: tuple[int, ...], view: ModelView) -> Array | None:
    """What the node gives of `x` as a view of its memory; None where that takes a copy, or another shape comes out."""
    if node.op_type == "Transpose":
        x = x.transpose(attribute(node, "perm", [*range(x.ndim)][::-1]))
    elif node.op_type in PIECES:
        piece = _piece(node, name, x, view)
        if piece is None:
            return None
        x = x[piece]
    try:
        return x.reshape(shape, copy=False)
    except ValueError:
        return None


def _piece(node: onnx.NodeProto, name: str, x: Array, view: ModelView) -> tuple[slice, ...] | None:
    """The part of `x` that Slice, Split or Gather takes; None for a Gather of several rows."""
    constants = [view.constants[other].reshape(-1).tolist() for other in node.input[1:] if other]
    piece = [slice(None)] * x.ndim
    axis = attribute(node, "axis", 0)
    if node.op_type == "Gather":
        if len(constants[0]) != 1:
            return None
        at = constants[0][0] % x.shape[axis]
        piece[axis] = slice(at, at + 1)
    elif node.op_type == "Split":
        outputs = list(node.output)
        sizes = constants[0] if constants else [x.shape[axis] // len(outputs)] * len(outputs)
        begin = sum(sizes[: outputs.index(name)])
        piece[axis] = slice(begin, begin + sizes[outputs.index(name)])
    else:
        starts, ends, *rest = constants
        axes = rest[0] if rest else range(len(starts))
        steps = rest[1] if len(rest) > 1 else [1] * len(starts)
        if min(steps) < 1:
            return None
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            piece[axis] = slice(start, end, step)
    return tuple(piece)
