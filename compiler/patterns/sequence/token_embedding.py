"""Embeddings of token sequences: rows of several tables added up, then normalised, as one layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.sequence import LayerNormParameters
from veltair.compiler.onnx.node_attributes import attribute, product_of
from veltair.compiler.patterns.matmul import multiplies_in_bf16, readable_as_bf16


@dataclass(frozen=True, slots=True)
class TokenEmbeddingMatch:
    """A sum of gathered rows and of positions in front of a layer normalisation.

    >>> TokenEmbeddingMatch(("words",), ("table",), ()).ids
    ('words',)
    """

    ids: tuple[str, ...]
    tables: tuple[str, ...]
    constants: tuple[NDArray[Any], ...]  # (tokens, width); what is added to every sequence: positions


def find_token_embeddings(view: ModelView) -> Matches:
    """Match each layer normalisation that reads such a sum."""
    matches = Matches()
    for node in view.nodes:
        if node.op_type != "LayerNormalization":
            continue
        terms = _SumTerms(view)
        shape = view.shape_of(node.output[0])
        if len(shape) == 3 and terms.collect(node.input[0]) and terms.ids and _normalises(node, view):
            rows = [_rows_of_each_sequence(constant, shape) for constant in terms.constants]
            positions = tuple(each for each in rows if each is not None)
            if len(positions) == len(rows):
                matches.add(node, TokenEmbeddingMatch(tuple(terms.ids), tuple(terms.tables), positions), terms.inner)
    return matches


def embedding(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    found = view.matches.at(node, TokenEmbeddingMatch)
    if found is None:
        return False
    shape, constants = view.shape_of(node.output[0]), view.constants
    _, tokens, width = shape
    rows = product_of(shape[:-1])
    start = np.zeros((tokens, width), np.float32)
    for constant in found.constants:
        start = start + constant
    weights: dict[str, NDArray[Any]] = {f"table{i}": constants[name] for i, name in enumerate(found.tables)}
    weights |= {
        "positions": np.ascontiguousarray(start, np.float32),
        "scale": np.asarray(constants[node.input[1]], np.float32).reshape(-1),
        "shift": np.asarray(constants[node.input[2]], np.float32).reshape(-1),
    }
    narrow = multiplies_in_bf16(rows, view) and readable_as_bf16(node.output[0], view)
    y = Activation(f"{node.output[0]}/rows", "uint16" if narrow else "float32", (rows, width))
    parameters = LayerNormParameters(float(attribute(node, "epsilon", 1e-5)))
    inputs = [builder.to_row_major(name) for name in found.ids]
    builder.emit(node.name, "embedding", inputs, [y], parameters, weights, 8 * abs(rows) * width)
    builder.alias(Activation(node.output[0], y.dtype, shape), y.name)
    return True


def _rows_of_each_sequence(constant: NDArray[Any], shape: Sequence[int]) -> NDArray[Any] | None:
    """What a constant adds to every sequence; None where it adds something else to each, as it may at a fixed batch."""
    first = constant.reshape(-1, *constant.shape[-2:])
    if constant.ndim > 3 or (first[1:] != first[:1]).any():
        return None
    return np.broadcast_to(first[0], shape[1:])


class _SumTerms:
    """The terms of a sum of gathered rows and of constants."""

    def __init__(self, view: ModelView) -> None:
        self.view = view
        self.ids: list[str] = []
        self.tables: list[str] = []
        self.constants: list[NDArray[Any]] = []
        self.inner: list[onnx.NodeProto] = []  # the nodes that make the sum

    def collect(self, name: str) -> bool:
        """Add the terms of a tensor. Returns whether it consists of nothing else."""
        view = self.view
        if name in view.constants:
            self.constants.append(view.constants[name])
            return self.constants[-1].dtype == np.float32 and self.constants[-1].ndim >= 2
        node = view.makers.get(name)
        if node is None or view.only_user(name) is None:
            return False
        self.inner.append(node)
        if node.op_type == "Add":
            return all(self.collect(i) for i in node.input)
        if node.op_type != "Gather" or attribute(node, "axis", 0) != 0:
            return False
        table = view.constants.get(node.input[0])
        if table is None or table.ndim != 2 or table.dtype != np.float32:
            return False
        if node.input[1] in view.constants:
            fixed = view.constants[node.input[1]]
            self.constants.append(table[fixed])
            return fixed.ndim in (1, 2) and fixed.shape[:-1] in ((), (1,))
        ids = view.values[node.input[1]]
        self.ids.append(node.input[1])
        self.tables.append(node.input[0])
        return len(ids.shape) == 2 and ids.dtype in ("int64", "int32")


def _normalises(node: onnx.NodeProto, view: ModelView) -> bool:
    """Whether a layer norm is over the last axis of sequences, with constant scale and shift."""
    shape = view.shape_of(node.output[0])
    constant = len(node.input) == 3 and all(name in view.constants for name in node.input[1:])
    outputs = [name for name in node.output if name]
    return len(shape) == 3 and attribute(node, "axis", -1) in (-1, 2) and constant and len(outputs) == 1
