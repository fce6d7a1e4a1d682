"""Sums of products in Einstein's notation as matrix products, which layers know.

A sum of three operands or more is one of the first two, then of that and the next. Labels of both operands that the
result keeps are matrices' places, those that it loses are summed over, and the others are rows and columns:
transpositions bring each operand to (places, rows, summed) and (places, summed, columns).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import onnx

from veltair.compiler.graph.model_view import ModelView
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.node_attributes import text_attribute
from veltair.compiler.onnx.onnx_model import OnnxModel
from veltair.compiler.patterns.model_rewriting import ModelRewriting

SPARE = "αβγδεζηθ"  # labels for what an ellipsis stands for


@dataclass(frozen=True, slots=True)
class _Product:
    """A sum of products of two operands. `left`, `right`, `result`: labels of each axis; sizes: by label."""

    node: onnx.NodeProto
    operands: tuple[str, str]
    left: str
    right: str
    result: str
    sizes: Mapping[str, int]


def einsums_as_products(view: ModelView) -> OnnxModel:
    """The model with matrix products in place of such sums; the same one where it has none."""
    if any(node.op_type == "Einsum" and len(node.input) > 2 for node in view.nodes):
        view = ModelView(_in_pairs(view), view.precision)
    products = {id(node): _product(node, view) for node in view.nodes if node.op_type == "Einsum"}
    if not any(products.values()):
        return view.model
    found = ModelRewriting(view)
    for node in view.nodes:
        product = products.get(id(node))
        if product is None:
            found.nodes.append(node)
        else:
            _multiply(product, found)
    return found.model()


def _in_pairs(view: ModelView) -> OnnxModel:
    """The model with sums of two operands in place of those of more."""
    found = ModelRewriting(view)
    for node in view.nodes:
        equation = text_attribute(node, "equation").replace(" ", "")
        inputs, arrow, result = equation.partition("->")
        texts, shapes = inputs.split(","), [view.shape_of(name) for name in node.input if name]
        plain = arrow and "..." not in equation and [*map(len, texts)] == [*map(len, shapes)]
        if node.op_type != "Einsum" or len(node.input) < 3 or not plain or is_opaque(node):
            found.nodes.append(node)
        else:
            _pair(node, texts, result, dict(zip("".join(texts), chain(*shapes), strict=True)), found)
    return found.model()


def _pair(
    node: onnx.NodeProto, texts: Sequence[str], result: str, sizes: Mapping[str, int], found: ModelRewriting
) -> None:
    """Write a sum of the first two operands, then of what that gives and the next."""
    text, name = texts[0], node.input[0]
    for place, (other, operand) in enumerate(zip(texts[1:], node.input[1:], strict=True), 1):
        last = place == len(texts) - 1
        wanted = result + "".join(texts[place + 1 :])
        kept = result if last else "".join(label for label in dict.fromkeys(text + other) if label in wanted)
        if not last and result[:1] in kept:  # the batch stays in front
            kept = result[:1] + kept.replace(result[:1], "")
        made = node.output[0] if last else f"{node.output[0]}/{place}"
        shape, dtype = [sizes[label] for label in kept], found.view.values[node.output[0]].dtype
        name = found.add("Einsum", [name, operand], made, shape, equation=f"{text},{other}->{kept}", dtype=dtype)
        text = kept


def _product(node: onnx.NodeProto, view: ModelView) -> _Product | None:
    """None for other sums: of one operand, over diagonals, of broadcast axes, or of one operand's own axis;
    and where nothing is multiplied as a matrix, as in a sum over two equal operands or an outer product."""
    if len(node.input) != 2 or is_opaque(node) or any(view.values[name].dtype != "float32" for name in node.input):
        return None
    shapes = [view.shape_of(name) for name in node.input]
    labels = _labels(text_attribute(node, "equation"), shapes)
    if labels is None:
        return None
    left, right, result = labels
    sizes = dict[str, int]()
    for text, shape in zip((left, right), shapes, strict=True):
        for label, size in zip(text, shape, strict=True):
            if sizes.setdefault(label, size) != size:
                return None
    alone = (set(left) ^ set(right)) - set(result)
    is_matrix = bool((set(left) & set(right)) - set(result)) and set(left) != set(right)
    open_axes = [label for label, size in sizes.items() if size < 0]
    if alone or not is_matrix or any(len(set(text)) < len(text) for text in labels) or 0 in sizes.values():
        return None
    if open_axes and (open_axes != [result[:1]] or any(open_axes[0] in text[1:] for text in (left, right))):
        return None  # the batch is the first axis wherever it is
    operands = node.input[0], node.input[1]
    if (open_axes and open_axes[0] not in left) or operands[0] in view.constants:  # weights come second
        return _Product(node, operands[::-1], right, left, result, sizes)
    return _Product(node, operands, left, right, result, sizes)


def _labels(equation: str, shapes: Sequence[Sequence[int]]) -> tuple[str, str, str] | None:
    """Of both operands and the result, a letter for each axis; None where letters and axes do not agree.

    >>> _labels("b...i, bj...->b...ij", [(2, 5, 3), (2, 4, 5)])
    ('bαi', 'bjα', 'bαij')
    """
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    texts = inputs.split(",")
    if len(texts) != len(shapes):
        return None
    ranks = [len(shape) - len(text.replace("...", "")) for text, shape in zip(texts, shapes, strict=True)]
    if not arrow:  # what stands once, in the order of the alphabet
        letters = inputs.replace("...", "").replace(",", "")
        result = ("..." if "..." in inputs else "") + "".join(sorted(c for c in letters if letters.count(c) == 1))
    meant = {rank for text, rank in zip(texts, ranks, strict=True) if "..." in text}
    wrong = any(rank for text, rank in zip(texts, ranks, strict=True) if "..." not in text)
    if wrong or len(meant) > 1 or not all(0 <= rank <= len(SPARE) for rank in meant):
        return None
    dots = SPARE[: max(meant, default=0)]
    left, right, given = (text.replace("...", dots) for text in (*texts, result))
    return left, right, given


def _multiply(product: _Product, found: ModelRewriting) -> None:
    """Write the transpositions, the matrix product, and the way back."""
    left, right, result, sizes = product.left, product.right, product.result, product.sizes
    name = product.node.output[0]
    summed = [label for label in left if label in right and label not in result]
    places = [label for label in result if label in left and label in right]
    rows = [label for label in result if label in left and label not in right]
    columns = [label for label in result if label in right and label not in left]
    first = result[0] if result and sizes[result[0]] < 0 else ""
    if places and first in rows:  # of the batch, each sample is a place that the other operand lacks
        rows.remove(first)
        places.insert(0, first)
    merged = bool(places)  # otherwise rows stay as they are

    def size(labels: Sequence[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    def shaped(source: str, labels: str, order: Sequence[str], shape: Sequence[int], part: str) -> str:
        """The operand with its axes in this order, then of this shape."""
        whole = [sizes[label] for label in order]
        constant = found.view.constants.get(source)
        if constant is not None:
            ordered = constant.transpose([labels.index(label) for label in order]).reshape(shape)
            return found.constant(f"{name}/{part}", np.ascontiguousarray(ordered))
        if list(order) != list(labels):
            perm = [labels.index(label) for label in order]
            source = found.add("Transpose", [source], f"{name}/{part}/ordered", whole, perm=perm)
        if list(shape) != whole:
            source = found.reshape(source, f"{name}/{part}", shape)
        return source

    at = [sizes[label] for label in places]
    right_places = [label for label in places if label in right]
    inner = [size(rows)] if merged else [sizes[label] for label in rows]
    a = shaped(product.operands[0], left, [*places, *rows, *summed], [*at, *inner, size(summed)], "left")
    b_shape = [*(sizes[label] for label in right_places), size(summed), size(columns)]
    b = shaped(product.operands[1], right, [*right_places, *summed, *columns], b_shape, "right")
    given = [*places, *rows, *columns]
    product_shape = [*at, *inner, size(columns)]
    made = found.add("MatMul", [a, b], f"{name}/product", product_shape)
    whole = [sizes[label] for label in given]
    last = given == list(result)
    if whole != product_shape:
        made = found.reshape(made, name if last else f"{name}/axes", whole)
    if not last:
        found.add("Transpose", [made], name, [sizes[c] for c in result], perm=[given.index(c) for c in result])
    elif whole == product_shape:
        found.rename_last(name)
