"""Functions of one tensor of 8 bits: what lies between its floats and the next rounding is a table of 256 steps.

SiLU, which ONNX Runtime's tool writes with a rounding behind the sigmoid and one behind the product, is such a
function; so are GELU by erf, a hard swish, a change of scale.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import GraphBuilder
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.graph.parameters.quantised import ReorderParameters
from veltair.compiler.onnx.folding.element_wise import ELEMENT_WISE
from veltair.compiler.onnx.node_evaluation import NodeEvaluator
from veltair.compiler.patterns.quantised.quantum import dequantised, meets_integers, quantum_of

MOST_NODES = 64  # of a function


@dataclass(frozen=True, slots=True)
class TableMatch:
    """The steps of `output` by those of `x`, as bytes without sign."""

    x: str
    output: str
    table: NDArray[Any]


@dataclass(slots=True)
class _Function:
    """The nodes between a tensor of 8 bits and another one, in order."""

    x: str
    nodes: dict[int, onnx.NodeProto] = field(default_factory=dict)  # by their place in the model


def find_step_tables(view: ModelView, taken: Matches) -> Matches:
    """The tables of a model, of nodes that belong to no match; of tables behind each other the whole."""
    places = {id(node): place for place, node in enumerate(view.nodes)}
    functions: dict[str, _Function] = {}  # by the tensor that they give
    for node in view.nodes:
        if node.op_type == "QuantizeLinear" and taken.is_free(node) and view.matches.is_free(node):
            found = _function_behind(node, view, places, functions, taken)
            if found is not None:
                functions[node.output[0]] = found
    matches, evaluator = Matches(), NodeEvaluator(view.model.opset)
    for name, function in reversed(functions.items()):
        last = view.makers[name]
        if matches.is_inner(last) or not meets_integers([function.x], name, taken.union(matches), view):
            continue
        table = _table(function, view, evaluator)
        if table is not None:
            matches.add(last, TableMatch(function.x, name, table), _own(function, last, view))
    return matches


def _function_behind(
    last: onnx.NodeProto, view: ModelView, places: dict[int, int], functions: dict[str, _Function], taken: Matches
) -> _Function | None:
    """The function whose result a node rounds; None where it reads more than one tensor of 8 bits, or floats."""
    if quantum_of(last, view) is None:
        return None
    nodes, sources, waiting = {places[id(last)]: last}, set[str](), [last.input[0]]
    while waiting:
        name = waiting.pop()
        maker = view.makers.get(name)
        if name in view.constants:
            if view.constants[name].size != 1:
                return None
            continue
        if maker is None or len(nodes) > MOST_NODES or not taken.is_free(maker):
            return None
        if places[id(maker)] in nodes:
            continue
        given = dequantised(name, view)
        before = functions.get(given.name) if given is not None else None
        if before is not None and len(nodes) + len(before.nodes) <= MOST_NODES:
            sources.add(before.x)
            nodes |= before.nodes
        elif given is not None:
            sources.add(given.name)
        elif maker.op_type in ELEMENT_WISE and not maker.domain and len(maker.output) == 1:
            waiting += [name for name in maker.input if name]
        else:
            return None
        nodes[places[id(maker)]] = maker
    if len(sources) != 1:
        return None
    [x] = sources
    same = view.shape_of(x) == view.shape_of(last.output[0])
    return _Function(x, dict(sorted(nodes.items()))) if same else None


def _table(function: _Function, view: ModelView, evaluator: NodeEvaluator) -> NDArray[Any] | None:
    """What the nodes give for every step; None where ONNX Runtime does not run them."""
    dtype = view.values[function.x].dtype
    known: dict[str, NDArray[Any]] = {function.x: np.arange(256, dtype=np.uint8).view(dtype)}
    name = function.x
    for node in function.nodes.values():
        inputs = [known[name] if name in known else _scalar(name, view) for name in node.input]
        made = evaluator.run(node, inputs)
        if made is None:
            return None
        name = node.output[0]
        known[name] = made[0]
    return known[name].reshape(-1) if known[name].size == 256 else None


def _scalar(name: str, view: ModelView) -> NDArray[Any] | None:
    return view.constants[name].reshape(()) if name else None


def _own(function: _Function, last: onnx.NodeProto, view: ModelView) -> list[onnx.NodeProto]:
    """The nodes in front of the last one that nobody else needs."""
    inside, own = {id(last)}, list[onnx.NodeProto]()
    for node in reversed(function.nodes.values()):
        [name] = node.output
        if node is last or name in view.output_names or not all(id(user) in inside for user in view.users_of(name)):
            continue
        inside.add(id(node))
        own.append(node)
    return own


def step_table(node: onnx.NodeProto, view: ModelView, builder: GraphBuilder) -> bool:
    """The layer of a table, filed under the node that rounds its results."""
    found = view.matches.at(node, TableMatch)
    if found is None:
        return False
    x = builder.tensor(found.x)
    y = Activation(found.output, found.table.dtype.name, x.shape, x.block)
    builder.emit(node.name, "table_int8", [x], [y], ReorderParameters(), {"table": found.table})
    return True
