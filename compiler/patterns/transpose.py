"""Transpositions of matrices."""

from __future__ import annotations

from dataclasses import replace

import onnx

from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.node_attributes import attribute, product_of


def transpose(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """A Transpose of a tensor that a layer has made, which turns the last two axes where axes that stay together count
    as one."""
    name, output = node.input[0], node.output[0]
    if not builder.is_made(name) or view.values[name].dtype != "float32":
        return False
    if builder.tensors[name].dtype not in ("float32", "uint16"):  # steps of 8 bits
        return False
    shape = view.shape_of(name)
    matrices = _matrices(shape, attribute(node, "perm", list(range(len(shape)))[::-1]))
    if matrices is None or min(matrices[1:]) < LANES:
        return False
    count, rows, columns = matrices
    x = builder.reshape(builder.to_row_major(name), matrices)
    y = Activation(output, "float32", (count, columns, rows))
    whole = replace(y, shape=view.shape_of(output))
    if whole.shape != y.shape:
        y = replace(y, name=f"{output}/matrices")
    builder.emit(node.name, "transpose", [x], [y])
    if whole.shape != y.shape:
        builder.alias(whole, y.name)
    return True


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
