"""Passes of tf2onnx over a graph, whose time grows with the graph and not with its square: of `conversion`.

A model with a thousand feature columns has a hundred thousand nodes.
"""

from __future__ import annotations

import copy
from typing import Any

from tf2onnx import optimizer
from tf2onnx.graph import Graph
from tf2onnx.optimizer.optimizer_base import GraphOptimizerBase
from tf2onnx.optimizer.transpose_optimizer import TransposeOptimizer, is_useless_transpose


def replace_slow_passes() -> None:
    """Puts the functions of this module into tf2onnx."""
    optimizer.optimize_graph = optimize_graph
    GraphOptimizerBase.optimize, Graph.extract_sub_graph_nodes = optimize, extract_sub_graph_nodes
    TransposeOptimizer._optimize_at_current_graph_level = optimize_transpositions


optimize_all = optimizer.optimize_graph


def optimize_graph(graph: Any, catch_errors: bool = True, optimizers: Any = None) -> Any:
    """All optimisers, with one copy of the graph in case one fails; tf2onnx makes one before each."""
    kept = copy.deepcopy(graph)
    try:
        return optimize_all(graph, catch_errors=False, optimizers=optimizers)
    except Exception:  # whatever an optimiser raises: tf2onnx goes on without it
        return optimize_all(kept, catch_errors, optimizers)


def optimize(self: Any, graph: Any, iteration: int) -> Any:
    """One optimiser. tf2onnx also counts all nodes for its log, and writes each as the protocol buffer that is written
    again where the model is made."""
    self.opt_iteration = iteration
    graph = self._optimize(graph)
    graph.delete_unused_nodes(graph.outputs)
    return graph


def extract_sub_graph_nodes(
    self: Any, outputs_name: list[str], input_checker: Any = None, remove_unused_inputs: bool = True
) -> list[Any]:
    """All nodes that outputs depend on, in one walk; tf2onnx copies what it has found for each input of the model."""
    names = list(outputs_name)
    if not remove_unused_inputs:
        names += [given.output[0] for given in self.inputs]
    found: dict[Any, None] = {}
    while names:
        node = self.get_node_by_output(names.pop(), search_in_parent_graphs=False)
        if not node or node in found or (input_checker and input_checker(node) is False):
            continue
        found[node] = None
        names += node.input
        if node.get_body_graphs():
            names += node.get_implicit_inputs()
    return list(found)


def optimize_transpositions(self: Any, graph: Any) -> Any:
    """Moves transpositions and takes them out until none can be; tf2onnx begins with the first node after each step."""
    self._g, self._force_stop = graph, {}
    self.pre_optimize_action()
    acts = True
    while acts and not self._force_stop.get("stop"):
        acts = False
        for node in [node for node in self.nodes if node.type == "Transpose"]:
            if graph.get_node_by_name(node.name) is not node:
                continue  # a step before this one took it out
            if node.get_attr("perm") and self._handle_nhwc_tranpose(node):
                acts = self.graph_been_opt = True
            if graph.get_node_by_name(node.name) is node and is_useless_transpose(node):
                self._remove_useless_tranpose(node)
                acts = True
    self.merge_duplicated_transposes()
    self.post_optimize_action()
    return graph
