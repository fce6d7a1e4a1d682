"""Names ONNX nodes, and reads their attributes, axes and padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from numpy.typing import NDArray


def name_nodes(proto: onnx.ModelProto) -> None:
    """Give every node a unique name: ONNX does not require one, ONNX Runtime and our messages do."""
    seen: set[str] = set()
    for index, node in enumerate(proto.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.name or node.op_type}_{index}"
        while node.name in seen:
            node.name += "_"
        seen.add(node.name)


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """The value of a node's attribute, or the default where the node lacks it."""
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def text_attribute(node: onnx.NodeProto, name: str, default: str = "") -> str:
    """A node's attribute that is a text, or `default`; what is not UTF-8 is replaced.

    >>> text_attribute(onnx.helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji"), "equation")
    'ij->ji'
    """
    return bytes(attribute(node, name, default.encode())).decode("utf-8", "replace")


def all_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """The values of all attributes that a node states, by name.

    >>> all_attributes(onnx.helper.make_node("LeakyRelu", ["x"], ["y"], alpha=0.5))
    {'alpha': 0.5}
    """
    return {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}


def product_of(shape: tuple[int, ...]) -> int:
    """The product of a shape's dimensions; -k (k times the batch) as one of them makes the product negative."""
    product = 1
    for dim in shape:
        product *= dim
    return product


def reduced_axes(node: onnx.NodeProto, constants: Mapping[str, NDArray[Any]]) -> list[int]:
    """The axes of a Reduce node, from its attribute or constant input; empty where it has neither."""
    axes = attribute(node, "axes", None)
    if axes is None and len(node.input) > 1 and node.input[1] in constants:
        axes = constants[node.input[1]].tolist()
    return list(axes or [])


def padding(
    node: onnx.NodeProto,
    shape: tuple[int, ...],
    out: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[int, int, int, int]:
    """Padding of an image (top, left, bottom, right); see `paddings`."""
    (top, left), (bottom, right) = paddings(node, shape, out, kernel, strides, dilations)
    return top, left, bottom, right


def paddings(
    node: onnx.NodeProto,
    shape: tuple[int, ...],
    out: tuple[int, ...],
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
) -> tuple[list[int], list[int]]:
    """Padding before and after each axis; the latter reaches as far as the outputs, which covers ceil_mode."""
    auto = text_attribute(node, "auto_pad", "NOTSET")
    before = list(attribute(node, "pads", [0] * 2 * len(shape)))[: len(shape)]
    need = [
        (o - 1) * s + (k - 1) * d + 1 - n for n, o, k, s, d in zip(shape, out, kernel, strides, dilations, strict=True)
    ]
    if auto == "SAME_UPPER":
        before = [max(n, 0) // 2 for n in need]
    elif auto == "SAME_LOWER":
        before = [(max(n, 0) + 1) // 2 for n in need]
    elif auto == "VALID":
        before = [0] * len(shape)
    return before, [max(n - b, 0) for n, b in zip(need, before, strict=True)]
