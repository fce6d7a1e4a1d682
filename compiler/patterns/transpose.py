"""Transpositions of matrices of numbers, and of rows of steps."""

from __future__ import annotations

from dataclasses import replace

import onnx

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.graph_builder import EIGHT_BITS, GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute, product_of


def transpose(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A Transpose of a tensor that a layer has made, which turns the last two axes where axes that stay together count
    as one; or of steps, the two in front of the last."""
    name, output = node.input[0], node.output[0]
    if not builder.is_made(name):
        return False
    dtype, stored = view.values[name].dtype, builder.tensors[name].dtype
    if dtype not in ("float32", *EIGHT_BITS) or stored not in (dtype, "uint16"):
        return False
    shape = view.shape_of(name)
    order = attribute(node, "perm", list(range(len(shape)))[::-1])
    matrices: tuple[int, ...] | None = _matrices(shape, order)
    if matrices is None and dtype in EIGHT_BITS:
        matrices = _matrices_of_rows(shape, order)
    elif matrices is not None and min(matrices[1:]) < LANES:
        return False
    if matrices is None:
        return False
    count, rows, columns, *row = matrices
    x = builder.reshape(builder.to_row_major(name), matrices)
    y = Activation(output, dtype, (count, columns, rows, *row))
    whole = replace(y, shape=view.shape_of(output))
    if whole.shape != y.shape:
        y = replace(y, name=f"{output}/matrices")
    builder.emit(node.name, "transpose", [x], [y])
    if whole.shape != y.shape:
        builder.alias(whole, y.name)
    return True


def _matrices_of_rows(shape: tuple[int, ...], order: list[int]) -> tuple[int, int, int, int] | None:
    """The same of what moves whole rows of a vector at least, and the numbers of a row.

    >>> _matrices_of_rows((-1, 384, 12, 64), [0, 2, 1, 3])
    (-1, 384, 12, 64)
    """
    kept = [axis for axis in order if shape[axis] != 1]
    together = 1
    while together < len(kept) and kept[-together - 1] + 1 == kept[-together] == len(shape) - together:
        together += 1
    row = product_of(tuple(shape[axis] for axis in kept[-together:]))
    if not kept or kept[-1] != len(shape) - 1 or row < LANES:
        return None
    last = set(kept[-together:])
    found = _matrices(shape[: len(shape) - together], [axis for axis in order if axis not in last])
    return (*found, row) if found is not None and min(found[1:]) > 0 else None


def _matrices(shape: tuple[int, ...], order: list[int]) -> tuple[int, int, int] | None:
    """How many matrices a transposition turns, their rows and columns; None if it does something else.

    >>> _matrices((-1, 196, 1, 64), [0, 3, 2, 1])
    (-1, 196, 64)
    """
    kept = [axis for axis, extent in enumerate(shape) if extent != 1]
    groups: list[list[int]] = []
    for place in (kept.index(axis) for axis in order if axis in kept):
        if groups and place == groups[-1][-1] + 1:
            groups[-1].append(place)
        else:
            groups.append([place])
    first = [group[0] for group in groups]
    if len(groups) == 2 and first[0] > first[1]:
        groups.insert(0, [])
    elif len(groups) != 3 or not first[0] < first[2] < first[1]:
        return None
    count, columns, rows = (product_of(tuple(shape[kept[place]] for place in group)) for group in groups)
    return count, rows, columns
