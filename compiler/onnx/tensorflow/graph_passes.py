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
    GraphOptimizerBase.optimize = optimize
    Graph.extract_sub_graph_nodes, Graph.topological_sort = extract_sub_graph_nodes, topological_sort
    Graph.reset_nodes = reset_nodes
    TransposeOptimizer._optimize_at_current_graph_level = optimize_transpositions


optimize_all, reset_all_nodes = optimizer.optimize_graph, Graph.reset_nodes


class Nodes(list[Any]):
    """The nodes of a graph. Passes remove them in order, so each is looked for where the last one was."""

    place = 0

    def remove(self, node: Any) -> None:
        try:
            self.place = self.index(node, self.place)
        except ValueError:
            self.place = self.index(node)
        del self[self.place]


def reset_nodes(self: Any, ops: list[Any]) -> None:
    """Gives a graph these nodes."""
    reset_all_nodes(self, ops)
    self._nodes = Nodes(ops)


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


def topological_sort(self: Any, ops: list[Any]) -> None:
    """Nodes in tf2onnx's own order, each before those that read it. tf2onnx lists all nodes that are left for each."""
    ops.sort(key=lambda op: op.name)
    place = {op.name: at for at, op in enumerate(ops)}
    readers: list[list[int]] = [[] for _ in ops]
    for at, op in enumerate(ops):
        for name in sorted({*op.input, *op.get_implicit_inputs()} - {""}):
            node = self.get_node_by_output(name)
            if node is None:
                raise ValueError(f"no node of {self.graph_name} has the output {name!r}")
            if node.name in place:  # else it is one of a graph around this one
                readers[place[node.name]].append(at)
    ended, on_way = list[int](), set[int]()
    done = bytearray(len(ops))
    for first in range(len(ops)):
        if done[first]:
            continue
        on_way.add(first)
        way = [(first, iter(readers[first]))]
        while way:
            at, left = way[-1]
            reader = next((reader for reader in left if not done[reader]), None)
            if reader is None:
                ended.append(at)
                done[at] = True
                on_way.remove(at)
                way.pop()
            elif reader in on_way:
                raise ValueError(f"the graph has a cycle at {ops[reader].name!r}")
            else:
                on_way.add(reader)
                way.append((reader, iter(readers[reader])))
    self.reset_nodes([ops[at] for at in reversed(ended)])


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
