"""Numbers of the rows of a batch: where they are more than indices, queries of different clients share no batch.

A query's answer must not depend on where its rows lie in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
import onnx

from veltair.compiler.onnx.node_evaluation import Array
from veltair.types import TensorSpec

# ConstantRows(table): as many rows as the output has, row after row of the table, from its first again after its last.
ROWS = "ConstantRows"
INDEXING = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})  # by their input 1


def keep_apart(
    nodes: Sequence[onnx.NodeProto],
    outputs: Set[str],
    values: Mapping[str, TensorSpec],
    constants: Mapping[str, Array],
) -> bool:
    """Whether queries may share a batch, as far as the numbers of its rows are concerned: they serve as indices alone.

    False, too, where an index is computed from row numbers and from what clients give (`row * length + id` reads
    another sample's row for an id beyond the length), and where rows of a sample may not lie side by side in an output
    that has several for each sample.
    """
    mergeable = True
    numbers = {n.output[0] for n in nodes if n.op_type == ROWS and _counts(values[n.output[0]], constants[n.input[0]])}
    for node in nodes:
        read = [place for place, name in enumerate(node.input) if name in numbers]
        if not read or (node.op_type in INDEXING and read == [1]):
            continue
        whole = all(np.dtype(values[name].dtype).kind in "iu" for name in node.output if name)
        given = set(node.input) - numbers - constants.keys() - {""}
        mergeable &= whole and (not given or _joins_coordinates(node, nodes))
        numbers.update(node.output)
    apart = mergeable and not numbers & outputs
    return apart and all(_keeps_samples(name, nodes, values) for name in outputs if name in values)


def _keeps_samples(output: str, nodes: Sequence[onnx.NodeProto], values: Mapping[str, TensorSpec]) -> bool:
    """Whether the rows of each sample lie side by side, if an output's first dimension is several times the batch."""
    if not values[output].shape or values[output].shape[0] >= -1:
        return True
    [maker] = [node for node in nodes if output in node.output]
    return maker.op_type in ("Reshape", "Flatten") and values[maker.input[0]].shape[:1] == (-1,)


def _joins_coordinates(node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> bool:
    """Whether a node puts coordinates of elements together, each of which is bounded by its own axis."""
    readers = [(reader.op_type, place) for reader in nodes for place, n in enumerate(reader.input) if n in node.output]
    return node.op_type == "Concat" and all(reader in (("GatherND", 1), ("ScatterND", 1)) for reader in readers)


def _counts(spec: TensorSpec, table: Array) -> bool:
    """Whether a ConstantRows node gives each image rows of its own."""
    return bool(spec.shape) and spec.shape[0] < 0 and len(table) > -spec.shape[0]
