"""Splits of texts, which a graph makes into sparse tensors: classes of tokens, side by side, take their place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from veltair.compiler.features.feature_description import CHARACTERS
from veltair.compiler.features.from_onnx.hash_buckets import CONTRIB
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.tokens.text_cleaning import TextForm

SPLIT = "StringSplit"  # of onnxruntime-extensions, as tf2onnx writes TensorFlow's
UNICODE_SPLIT = "UnicodeSplit"  # of `tensorflow_conversion`: row splits, and characters
if TYPE_CHECKING:
    from veltair.compiler.features.from_onnx.classes.class_columns import ClassColumn
    from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses

Constant = Callable[[str, NDArray[Any]], str]


def is_split(node: onnx.NodeProto) -> bool:
    """Whether a node splits texts: into indices [tokens, 2], tokens and shape [2], or row splits and characters."""
    return node.op_type in (SPLIT, UNICODE_SPLIT) and node.domain == CONTRIB


def read_split(node: onnx.NodeProto, form: TextForm, graph: OnnxGraphIndex) -> tuple[str, TextForm]:
    """The character between two tokens, "" for white space, and the form of the tokens of a text in `form`.

    CHARACTERS for a split into these. Raises ModelError for another separator, and for a form that has to do with it.
    """
    if node.op_type == UNICODE_SPLIT:
        if form.strip or form.keep:
            raise graph.error(node, "splits into characters what is stripped, or kept in part; expected neither")
        return CHARACTERS, form
    separator = graph.text(node.input[1]) if len(node.input) > 1 else None
    skips = graph.constant(node.input[2]) if len(node.input) > 2 else None
    if separator is None or len(separator) > 1 or not separator.isascii():
        raise graph.error(node, f"splits at {separator!r}; expected white space or one ASCII character")
    if skips is not None and skips.any() and separator:
        raise graph.error(node, "passes over empty tokens; expected them to be kept")
    if not separator:
        return "", replace(form, strip=False)  # white space around the text is between tokens, too
    if form.strip or (form.case and separator.isalpha()) or not form.of(separator.encode()):
        raise graph.error(node, f"splits at {separator!r}, which the steps before it change or leave out")
    return separator, form


def sparse_tokens(
    node: onnx.NodeProto, padded: str, values: str, absent: int, constant: Constant, *, whole: bool
) -> list[onnx.NodeProto]:
    """Nodes that give what a split does, of classes [batch, places] that end with absent ones.

    padded: the tensor of classes. values: the tensor of those that are there, in a row. absent: the class of no token.
    constant: makes a constant of a name and values. whole: whether indices and shape are given, too.
    """
    number = onnx.TensorProto.INT64
    most, first = constant(f"{values}/absent", np.array(absent)), constant(f"{values}/one", np.array([1]))
    steps: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("Less", [padded, most], f"{values}/there", {}),
        ("NonZero", [f"{values}/there"], f"{values}/places", {}),
        ("Transpose", [f"{values}/places"], f"{values}/indices", {}),
        ("GatherND", [padded, f"{values}/indices"], values, {}),
    ]
    if whole and node.op_type == UNICODE_SPLIT:
        zero = constant(f"{values}/zero", np.array([0]))
        steps += [
            ("Cast", [f"{values}/there"], f"{values}/ones", {"to": number}),
            ("ReduceSum", [f"{values}/ones", first], f"{values}/many", {"keepdims": 0}),
            ("CumSum", [f"{values}/many", constant(f"{values}/axis", np.array(0))], f"{values}/ends", {}),
            ("Concat", [zero, f"{values}/ends"], node.output[0], {"axis": 0}),
        ]
    elif whole:
        indices, _, shape = node.output
        steps += [
            ("Identity", [f"{values}/indices"], indices, {}),
            ("Shape", [padded], f"{values}/extent", {"end": 1}),
            ("Cast", [f"{values}/there"], f"{values}/ones", {"to": number}),
            ("ReduceSum", [f"{values}/ones", first], f"{values}/many", {"keepdims": 0}),
            ("ReduceMax", [f"{values}/many"], f"{values}/longest", {"keepdims": 1}),
            ("Concat", [f"{values}/extent", f"{values}/longest"], shape, {"axis": 0}),
        ]
    return [
        helper.make_node(op, reads, [made], f"{values}/{place} {op}", **more)
        for place, (op, reads, made, more) in enumerate(steps)
        if made
    ]


def put_sequences(proto: onnx.ModelProto, found: Sequence[ClassColumn]) -> dict[str, ValueClasses]:
    """Puts an input [batch, places] of classes before each tensor that is a sequence, in place.

    Returns what the inputs stand for.
    """
    inputs: dict[str, ValueClasses] = {}
    for column in found:
        assert column.sequence is not None  # the caller chose those
        name, ids = column.tensor, f"{column.tensor}/tokens"
        values = numpy_helper.from_array(column.sequence.values, f"{name}/values")
        proto.graph.initializer.append(values)
        shape = ["batch", column.classes.places]
        proto.graph.input.append(helper.make_tensor_value_info(ids, onnx.TensorProto.INT64, shape))
        inputs[ids] = column.classes
        place = next(at for at, node in enumerate(proto.graph.node) if name in node.output)
        node = proto.graph.node[place]
        node.output[list(node.output).index(name)] = f"{name}/unread"
        proto.graph.node.insert(place, helper.make_node("Gather", [values.name, ids], [name], f"{name}/of tokens"))
    return inputs
