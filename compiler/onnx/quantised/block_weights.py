"""Weights in blocks of 2, 4 or 8 bits (MatMulNBits of com.microsoft) as floats, so that every product knows them.

ONNX Runtime's tool writes such files. Each column of the weight is cut into blocks along its rows; a block has a scale
and a zero point of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from veltair.compiler.onnx.folding.fused_operators import DOMAIN
from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.node_evaluation import Array

Constants = dict[str, Array]
OPERATOR = "MatMulNBits"


def unpack_block_weights(graph: onnx.GraphProto, constants: Constants) -> None:
    """Replace every MatMulNBits of constant weights by a MatMul of floats, and an Add where it has a bias.

    `constants` takes the floats, and so do the graph's initializers. A node stays, for ONNX Runtime, if it rounds its
    first operand to 8 bits (accuracy_level 4), has its rows in another order (g_idx), or is of other numbers than
    float32.
    """
    unpacked = dict[tuple[object, ...], str]()  # names of the floats, by what they are made of
    nodes = list[onnx.NodeProto]()
    for node in graph.node:
        nodes += _product(node, graph, constants, unpacked) or [node]
    del graph.node[:]
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input} | {output.name for output in graph.output}
    packed = {name for key in unpacked for name in key if isinstance(name, str)} - read
    for name in packed:
        constants.pop(name, None)
    kept = [tensor for tensor in graph.initializer if tensor.name not in packed]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _product(
    node: onnx.NodeProto, graph: onnx.GraphProto, constants: Constants, unpacked: dict[tuple[object, ...], str]
) -> list[onnx.NodeProto]:
    """The nodes that take the node's place; empty where it stays."""
    if node.op_type != OPERATOR or node.domain != DOMAIN:
        return []
    x, steps, scales, zeros, order, bias = [*node.input, *[""] * 6][:6]
    if order or attribute(node, "accuracy_level", 0) == 4:
        return []
    rows, columns, bits, block = (int(attribute(node, name, 0)) for name in ("K", "N", "bits", "block_size"))
    key = (steps, scales, zeros, rows, columns, bits or 4, block)
    if key not in unpacked:
        weight = _weight(*key, constants)
        if weight is None:
            return []
        unpacked[key] = f"{node.name}/weight"
        constants[unpacked[key]] = weight
        graph.initializer.append(numpy_helper.from_array(weight, unpacked[key]))
    product = f"{node.name}/product" if bias else node.output[0]
    nodes = [helper.make_node("MatMul", [x, unpacked[key]], [product], name=node.name)]
    if bias:
        nodes.append(helper.make_node("Add", [product, bias], [node.output[0]], name=f"{node.name}/bias"))
    return nodes


def _weight(
    steps: str, scales: str, zeros: str, rows: int, columns: int, bits: int, block: int, constants: Mapping[str, Array]
) -> Array | None:
    """(rows, columns), float32: (step - zero) * scale, of the constants with these names; None where one is not
    constant or has other extents than the node says."""
    if any(name not in constants for name in (steps, scales, zeros) if name):
        return None
    if bits not in (2, 4, 8) or min(rows, columns) < 1 or block < 8:
        return None
    packed, scale = constants[steps], constants[scales]
    blocks = -(-rows // block)
    whole = packed.size == columns * blocks * block * bits // 8 and scale.size == columns * blocks
    if packed.dtype != np.uint8 or scale.dtype != np.float32 or not whole:
        return None
    values = _unpack(packed.reshape(columns, -1), bits).reshape(columns, blocks, block).astype(np.float32)
    middle: Array
    if not zeros:
        middle = np.full(1, 1 << (bits - 1), np.float32)
    elif constants[zeros].dtype == np.uint8 and constants[zeros].size == columns * -(-blocks * bits // 8):
        middle = _unpack(constants[zeros].reshape(columns, -1), bits)[:, :blocks, np.newaxis].astype(np.float32)
    elif constants[zeros].dtype == np.float32 and constants[zeros].size == columns * blocks:
        middle = constants[zeros].reshape(columns, blocks, 1)
    else:
        return None
    floats = (values - middle) * scale.reshape(columns, blocks, 1)
    return np.ascontiguousarray(floats.reshape(columns, -1)[:, :rows].T)


def _unpack(packed: Array, bits: int) -> Array:
    """(columns, bytes * 8 / bits), uint8: the numbers in each byte, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., np.newaxis] >> shifts) & ((1 << bits) - 1)).reshape(len(packed), -1)
