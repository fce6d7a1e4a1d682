"""Tensors without elements: their one value is known, so that no kernel has to make or read them.

Exporters write them where a model could have more: a rotary embedding of the whole width splits off what it does not
turn, a decoder joins its new keys to a past of length 0, and a list of axes may be an input and have no entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from veltair.compiler.onnx.folding.shape_propagation import TensorFacts
from veltair.compiler.onnx.node_attributes import attribute


def leave_out_constants(nodes: Iterable[onnx.NodeProto], constants: Mapping[str, NDArray[Any]]) -> None:
    """Take constants of no extent out of every Concat along it that has other parts.

    ONNX Runtime passes over them, also where another dimension differs: keys of no past, (1, heads, 0, width), stand
    before those of any batch.
    """

    def is_empty(name: str, axis: int) -> bool:
        shape = constants[name].shape if name in constants else ()
        return -len(shape) <= axis < len(shape) and shape[axis] == 0

    for node in nodes:
        if node.op_type != "Concat":
            continue
        axis = attribute(node, "axis", 0)
        full = [name for name in node.input if not is_empty(name, axis)]
        if full and len(full) < len(node.input):
            node.CopyFrom(_joined(node, full, list(node.output)))


def without_empty(
    node: onnx.NodeProto, facts: Mapping[str, TensorFacts]
) -> tuple[onnx.NodeProto, dict[str, NDArray[np.int64]]]:
    """The node, or what a Concat or a Split is without its empty parts; and the constant that a Split reads then."""

    def full(name: str) -> bool:
        return name not in facts or any(0 not in shape for shape in facts[name].shapes)

    if node.op_type == "Concat" and not all(map(full, node.input)):
        return _joined(node, [name for name in node.input if full(name)], list(node.output)), {}
    if node.op_type == "Split" and not all(map(full, node.output)):
        outputs = [name for name in node.output if full(name)]
        axis = attribute(node, "axis", 0)
        sizes = [{shape[axis] for shape in facts[name].shapes} for name in outputs]
        if all(len(found) == 1 for found in sizes):
            name = f"{node.name}/sizes"
            lengths = np.array([found.pop() for found in sizes], np.int64)
            inputs = [node.input[0], *([name] if len(outputs) > 1 else [])]
            return _joined(node, inputs, outputs), {name: lengths} if len(outputs) > 1 else {}
    return node, {}


def _joined(node: onnx.NodeProto, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    """The node between fewer tensors. Of one tensor to one it is an Identity."""
    alone = len(inputs) == len(outputs) == 1
    changed = helper.make_node("Identity" if alone else node.op_type, inputs, outputs, name=node.name)
    changed.attribute.extend(a for a in node.attribute if a.name == "axis" and not alone)
    return changed
