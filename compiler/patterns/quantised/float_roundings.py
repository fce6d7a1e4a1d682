"""Roundings between floats: steps that nothing computes with are float operators, which join those around them.

ONNX Runtime's tool rounds whatever an operator reads and makes. Where a float is rounded to steps and floats read these
steps (QuantizeLinear and DequantizeLinear by one scale, and no product of integers behind), the pair is a product, a
rounding, two bounds and a product. As nodes of their own the two are passes over memory; so they are none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.onnx.constants import needed_nodes
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.quantised.find import find_quantised_layers
from veltair.compiler.patterns.quantised.quantum import VIEWS, Quantum, quantum_of
from veltair.types import TensorSpec

# Their results lie in blocks of channels, where the chain would be one pass for each of its operators.
BLOCKED = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "LRN", "Resize", "Concat"})


@dataclass(slots=True)
class _Rewriting:
    """What the new model has: `nodes` are those that stand in front of a node, by its id."""

    view: ModelView
    nodes: dict[int, list[onnx.NodeProto]] = field(default_factory=dict)
    values: dict[str, TensorSpec] = field(default_factory=dict)
    constants: dict[str, NDArray[Any]] = field(default_factory=dict)
    renamed: dict[int, dict[str, str]] = field(default_factory=dict)  # inputs of readers, by the id of the node


def round_as_floats(view: ModelView) -> OnnxModel:
    """The model with such pairs as float operators; the same one where it has none."""
    if not any(node.op_type == "DequantizeLinear" for node in view.nodes):
        return view.model
    matches, found = find_quantised_layers(view), _Rewriting(view)
    for node in view.nodes:
        if node.op_type == "DequantizeLinear" and not matches.is_inner(node):
            maker, quantum = view.makers.get(node.input[0]), quantum_of(node, view)
            if maker is not None and quantum is not None and _is_float_rounding(maker, quantum, matches, view):
                _round_for_floats(node, maker, quantum, matches, found)
    return _rewritten(found) if found.nodes else view.model


def _is_float_rounding(maker: onnx.NodeProto, quantum: Quantum, matches: Matches, view: ModelView) -> bool:
    """Whether a float is rounded to these steps, by a node that belongs to no layer of integers."""
    if maker.op_type != "QuantizeLinear" or not matches.is_free(maker):
        return False
    given = maker.input[0]
    before = view.makers.get(given)
    of_kind = before is not None and before.op_type in (*BLOCKED, *VIEWS)
    return (
        quantum_of(maker, view) == quantum
        and given not in view.constants
        and view.values[given].dtype == "float32"
        and not of_kind
        and bool(view.shape_of(given))
    )


def _round_for_floats(
    node: onnx.NodeProto, maker: onnx.NodeProto, quantum: Quantum, matches: Matches, found: _Rewriting
) -> None:
    """The chain in front of a DequantizeLinear, for its readers that compute in floats."""
    view, output = found.view, node.output[0]
    readers = [user for user in view.users_of(output) if matches.is_free(user)]
    if not readers or output in view.output_names or any(output not in reader.input for reader in readers):
        return
    info, spec = np.iinfo(quantum.dtype), view.values[output]
    rounded = f"{output}/rounded"
    operators: tuple[tuple[str, str, list[float]], ...] = (
        ("Mul", "steps", [float(np.float32(1) / np.float32(quantum.scale))]),
        ("Round", "nearest", []),
        ("Clip", "within", [info.min - quantum.zero, info.max - quantum.zero]),
        ("Mul", "", [quantum.scale]),
    )
    given = maker.input[0]
    chain, name = list[onnx.NodeProto](), found.renamed.get(id(maker), {}).get(given, given)  # one that was rounded too
    for op, suffix, numbers in operators:
        inputs, result = [name], f"{rounded}/{suffix}" if suffix else rounded
        for nth, number in enumerate(numbers):
            constant = f"{result}/operand_{nth}"
            found.constants[constant] = np.array(number, np.float32)
            found.values[constant] = TensorSpec(constant, "float32", ())
            inputs.append(constant)
        found.values[result] = TensorSpec(result, "float32", spec.shape)
        chain.append(helper.make_node(op, inputs, [result], name=result))
        name = result
    found.nodes[id(node)] = chain
    for reader in readers:
        found.renamed.setdefault(id(reader), {})[output] = rounded


def _rewritten(found: _Rewriting) -> OnnxModel:
    view = found.view
    nodes = list[onnx.NodeProto]()
    for node in view.nodes:
        nodes += found.nodes.get(id(node), [])
        names = found.renamed.get(id(node))
        if names:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [names.get(name, name) for name in node.input]
            node = copy
        nodes.append(node)
    return replace(
        view.model,
        nodes=tuple(needed_nodes(nodes, view.output_names)),
        values={**view.values, **found.values},
        initializers={**view.constants, **found.constants},
    )
