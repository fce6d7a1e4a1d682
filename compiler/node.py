"""Reading ONNX nodes: attributes, padding, extents."""

from __future__ import annotations

from typing import Any

import onnx


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def times(shape: tuple[int, ...]) -> int:
    """The product of extents, one of which may depend on the batch."""
    product = 1
    for dim in shape:
        product *= dim
    return product


def padding(
    node: onnx.NodeProto, shape: tuple[int, ...], out: tuple[int, ...], kernel: tuple[int, ...],
    strides: tuple[int, ...], dilations: tuple[int, ...],
) -> tuple[int, int, int, int]:  # fmt: skip
    """Top, left, bottom, right; bottom and right as far as the outputs reach, so that ceil_mode is in them."""
    auto = attribute(node, "auto_pad", b"NOTSET").decode()
    given = list(attribute(node, "pads", [0, 0, 0, 0]))
    before = given[:2]
    need = [
        (o - 1) * s + (k - 1) * d + 1 - n for n, o, k, s, d in zip(shape, out, kernel, strides, dilations, strict=True)
    ]
    if auto == "SAME_UPPER":
        before = [max(n, 0) // 2 for n in need]
    elif auto == "SAME_LOWER":
        before = [(max(n, 0) + 1) // 2 for n in need]
    elif auto == "VALID":
        before = [0, 0]
    after = [max(n - b, 0) for n, b in zip(need, before, strict=True)]
    return before[0], before[1], after[0], after[1]
