"""Finds the operators of a graph that belong to each embedding column (RECom 3.1.2 and appendix B, Algorithm 1)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from veltair.compiler.onnx.node_attributes import attribute

LOOKUPS = ("Gather", "GatherND", "GatherElements")
REALS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True, slots=True)
class ColumnSubgraph:
    """An embedding column: a table and the operators that lead to and from its lookup alone, in graph order.

    >>> ColumnSubgraph("items", ("hash", "lookup")).table
    'items'
    """

    table: str
    operators: tuple[str, ...]  # names of nodes


def gathered_tables(graph: onnx.GraphProto) -> list[str]:
    """Names of the weights whose rows are gathered: matrices of real numbers that a lookup along axis 0 reads."""
    matrices = {w.name for w in graph.initializer if len(w.dims) == 2 and w.data_type in REALS}
    read = [
        node.input[0]
        for node in graph.node
        if node.op_type in LOOKUPS and node.input[0] in matrices and attribute(node, "axis", 0) in (0, -2)
    ]
    return list(dict.fromkeys(read))


def identify_columns(nodes: Sequence[onnx.NodeProto], embedding_tables: Iterable[str]) -> list[ColumnSubgraph]:
    """The subgraph of each table. Operators that precede lookups of several tables are in the subgraph of each.

    `nodes` are named and in an order in which each stands behind what it reads.
    """
    producer = {output: node.name for node in nodes for output in node.output if output}
    by_name = {node.name: node for node in nodes}
    readers: dict[str, list[str]] = defaultdict(list)
    preceding: dict[str, set[str]] = {}  # l. 1: tables before each operator
    wanted = list(embedding_tables)
    for node in nodes:
        before: set[str] = set()
        for name in node.input:
            readers[name].append(node.name)
            if name in wanted:
                before.add(name)
            elif name in producer:
                before |= preceding[producer[name]]
        preceding[node.name] = before
    found = []
    for table in wanted:  # l. 2
        members: set[str] = set()
        queue = deque([table])  # l. 3: tensors whose readers have not been looked at
        while queue:  # l. 4
            for reader in readers[queue.popleft()]:  # l. 5, 6
                if reader not in members and len(preceding[reader]) <= 1:  # l. 7
                    members.add(reader)  # l. 8
                    queue.extend(by_name[reader].output)
        left = deque(members)  # l. 9 to 13: whatever comes before, over and over
        while left:
            for name in by_name[left.popleft()].input:
                earlier = producer.get(name)
                if earlier is not None and earlier not in members:
                    members.add(earlier)
                    left.append(earlier)
        found.append(ColumnSubgraph(table, tuple(node.name for node in nodes if node.name in members)))  # l. 14
    return found
