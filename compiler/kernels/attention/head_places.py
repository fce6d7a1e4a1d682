"""Where a task of an attention kernel finds its head in the layer's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import Expr
from veltair.compiler.graph.parameters.sequence import AttentionParameters


@dataclass(frozen=True, slots=True)
class HeadPlace:
    """One head of Q, K or V in a buffer of rows: its first token's row, and its first column in every row. ::

    query, key, value = head_places(parameters, buffers, image, head)
    """

    buffer: Any
    row: Expr
    column: Expr


def head_places(parameters: AttentionParameters, buffers: Sequence[Any], image: Expr, head: Expr) -> list[HeadPlace]:
    """The places of Q, K and V for one head of one image. buffers: the layer's inputs."""
    found = []
    sides = zip(parameters.places, parameters.heads_first, parameters.extents, parameters.heads_of_sides, strict=True)
    for (place, column), heads_first, extent, heads in sides:
        own = head if heads == parameters.heads else T.floordiv(head, parameters.group)
        if heads_first:
            row, first = (image * heads + own) * extent, T.int32(column)
        else:
            row, first = image * extent, column + own * parameters.width
        found.append(HeadPlace(buffers[place], T.bind(row), T.bind(first)))
    return found
