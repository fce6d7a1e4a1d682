"""Tables that an ONNX file itself stores in half floats, or in bytes with a scale; they stay as they are stored.

These patterns are found:


- Gather of float16, Cast to float32 behind or before it
- Gather of int8 or uint8, DequantizeLinear behind it: one scale for the table, or one a row, gathered by the same ids
- DequantizeLinear of the table, with one scale or one a row, and a Gather of its output
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.embedding.row_storage import TAIL_BYTES, decode_rows
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.safety_steps import nodes_needed
from veltair.compiler.onnx.constants import table_of
from veltair.compiler.onnx.node_attributes import attribute

BYTES = (TensorProto.INT8, TensorProto.UINT8)


@dataclass(frozen=True, slots=True)
class _Lookup:
    """A Gather of a stored table, and the float32 tensor that it results in."""

    table: TensorProto
    scale: TensorProto | None  # none: float16
    zero: TensorProto | None
    out: str


def extract_quantised_tables(
    proto: onnx.ModelProto, path: Path, text_operators: frozenset[str]
) -> dict[str, NDArray[Any]]:
    """Turn stored tables into inputs (R, D) of float32 of the graph, in place, and return their rows as
    `embedding.row_storage.encode_rows` stores them.

    Tables that are read by ids computed with `text_operators` become float32 constants instead, because
    `extract_columns` looks at them next.
    """
    graph, whole = proto.graph, OnnxGraphIndex(proto, path)
    reader = _Reader(whole)
    taken: dict[str, NDArray[Any]] = {}
    plain: set[str] = set()
    before = _tensors_after(graph, text_operators)
    for node in graph.node:
        found = reader.lookup(node)
        if found is None:
            continue
        parts = [tensor.name for tensor in (found.table, found.scale, found.zero) if tensor is not None]
        name = "/".join([*parts, "rows"])
        if name not in taken and name not in plain:
            rows = _rows(found, path)
            if node.input[1] in before:
                plain.add(name)
                graph.initializer.append(numpy_helper.from_array(decode_rows(rows), name))
            else:
                taken[name] = rows
                graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(found.table.dims)))
        node.input[0] = name
        if node.output[0] != found.out:
            behind = whole.producer[found.out]
            behind.output[0] = f"{found.out}/stored"  # nobody reads it: the node goes
            node.output[0] = found.out
    if taken or plain:
        kept = nodes_needed(list(graph.node), {output.name for output in graph.output})
        del graph.node[:]
        graph.node.extend(kept)
    return taken


class _Reader:
    def __init__(self, graph: OnnxGraphIndex) -> None:
        self._graph, self._weights = graph, graph.weights

    def lookup(self, gather: onnx.NodeProto) -> _Lookup | None:
        fixed = gather.op_type == "Gather" and gather.input[1] in self._weights
        if gather.op_type != "Gather" or fixed or attribute(gather, "axis", 0) not in (0, -2):
            return None
        ids, out = gather.input[1], gather.output[0]
        before = self._graph.producer.get(gather.input[0])
        if before is not None:
            table = self._matrix(before.input[0]) if before.input else None
            if table is None:
                return None
            if before.op_type == "Cast" and table.data_type == TensorProto.FLOAT16 and _to_float(before):
                return _Lookup(table, None, None, out)
            return self._dequantised(before, table, out, None)
        table, behind = self._matrix(gather.input[0]), self._graph.only_user(out)
        if table is None or behind is None:
            return None
        if behind.op_type == "Cast" and table.data_type == TensorProto.FLOAT16 and _to_float(behind):
            return _Lookup(table, None, None, behind.output[0])
        return self._dequantised(behind, table, behind.output[0], ids) if behind.input[0] == out else None

    def _dequantised(self, node: onnx.NodeProto, table: TensorProto, out: str, ids: str | None) -> _Lookup | None:
        """`ids`: the tensor that scales are gathered by; None where the node stands before the lookup."""
        if node.op_type != "DequantizeLinear" or table.data_type not in BYTES or attribute(node, "block_size", 0):
            return None
        given = [name for name in node.input[1:] if name]
        found = [self._weights.get(name) or self._picked(name, ids) for name in given]
        scale, zero = found[0], found[1] if len(found) > 1 else None
        if scale is None or None in found or scale.data_type != TensorProto.FLOAT:
            return None
        sizes = {int(np.prod(tensor.dims)) for tensor in found if tensor is not None}
        whole = sizes == {1} and all(name in self._weights for name in given)
        rows = (
            sizes == {table.dims[0]}
            and attribute(node, "axis", 1) in (0, -2 if ids is None else 0)
            and all((name in self._weights) == (ids is None) for name in given)
        )
        return _Lookup(table, scale, zero, out) if whole or rows else None

    def _picked(self, name: str, ids: str | None) -> TensorProto | None:
        """The constant of one number a row that the same ids are looked up in."""
        node = self._graph.producer.get(name)
        if node is None or node.op_type != "Gather" or node.input[1] != ids or attribute(node, "axis", 0) != 0:
            return None
        tensor = self._weights.get(node.input[0])
        return tensor if tensor is not None and len(tensor.dims) == 1 else None

    def _matrix(self, name: str) -> TensorProto | None:
        tensor = self._weights.get(name)
        return tensor if tensor is not None and len(tensor.dims) == 2 and 0 not in tensor.dims else None


def _to_float(node: onnx.NodeProto) -> bool:
    return bool(attribute(node, "to", 0) == TensorProto.FLOAT)


def _rows(found: _Lookup, path: Path) -> NDArray[Any]:
    """(q - zero) * scale as byte * scale + bias, in float32: off by a rounding of 255 scales at most."""
    table = table_of(found.table, path)
    if found.scale is None:
        return table
    shift = 128 if table.dtype == np.int8 else 0
    zero = table_of(found.zero, path).astype(np.float64).reshape(-1, 1) if found.zero is not None else np.zeros((1, 1))
    scale = table_of(found.scale, path).reshape(-1, 1)
    rows = np.empty((len(table), table.shape[1] + TAIL_BYTES), np.uint8)
    rows[:, :-TAIL_BYTES] = table.view(np.uint8)
    if shift:
        rows[:, :-TAIL_BYTES] ^= 0x80  # two's complement plus 128
    tail = np.empty((len(table), 2), np.float32)
    tail[:, :1], tail[:, 1:] = scale, -(zero + shift) * scale
    rows[:, -TAIL_BYTES:] = tail.view(np.uint8)
    return rows


def _tensors_after(graph: onnx.GraphProto, operators: frozenset[str]) -> set[str]:
    """Tensors that depend on outputs of these operators."""
    found: set[str] = set()
    for node in graph.node:
        if node.op_type in operators or found.intersection(node.input):
            found.update(node.output)
    return found
