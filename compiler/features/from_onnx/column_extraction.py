"""Takes the columns of an ONNX model out of it: those that its operators spell, and those of classes of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from veltair.compiler.features.feature_description import ColumnInput, FeatureDescription
from veltair.compiler.features.feature_tables import FeatureTable
from veltair.compiler.features.from_onnx.bucketize_pattern import find_bucketize
from veltair.compiler.features.from_onnx.classes.class_columns import ClassColumns
from veltair.compiler.features.from_onnx.classes.class_graph import ClassGraph
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses
from veltair.compiler.features.from_onnx.column_reader import WAYS, ColumnReader, is_textual
from veltair.compiler.features.from_onnx.graph_rewriter import ColumnTensor, GraphRewriter, infer_element_types
from veltair.compiler.features.from_onnx.hash_buckets import CONTRIB, is_hash
from veltair.compiler.features.from_onnx.id_operators import NUMERIC
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.safety_steps import drop_proved_steps
from veltair.compiler.features.from_onnx.standard_copy import FOREIGN, count_boundaries
from veltair.compiler.features.from_onnx.tokens.fixed_batch import open_batch
from veltair.compiler.features.from_onnx.tokens.split_nodes import put_sequences
from veltair.errors import ModelError

METADATA = "veltair.max_batch"  # the greatest batch of a model whose first dimension is symbolic
WRITTEN = ("StringSplit", "StringNormalizer", "StringConcat")  # operators on text that the reader's errors speak of


@dataclass(frozen=True, slots=True)
class ExtractedColumns:
    """Columns that were taken out of an ONNX model; `extract_columns` makes them.

    >>> description = FeatureDescription(features=(), columns=(), inputs=())
    >>> ExtractedColumns(description, {"users": np.zeros((100, 16), np.float32)}).tables["users"].shape
    (100, 16)
    """

    description: FeatureDescription
    tables: Mapping[str, NDArray[np.float32]]  # rows by the name of the table
    batch: int | None = None  # that the file's inputs fix


def extract_columns(proto: onnx.ModelProto, path: Path) -> ExtractedColumns | None:
    """Replaces columns by the inputs that they give, in place; None where there are none. Every node has a name.

    Raises ModelError that names the node which cannot be taken.
    """
    index = OnnxGraphIndex(proto, path)
    foreign = any(is_textual(node, index) or node.op_type in FOREIGN for node in proto.graph.node)
    foreign |= any(i.type.tensor_type.elem_type == TensorProto.STRING for i in proto.graph.input)
    if not foreign and not find_bucketize(index, NUMERIC):
        return None
    batch = open_batch(proto)
    found = _read_columns(proto, path)
    if found is None or batch is None:
        return found
    if METADATA not in {entry.key for entry in proto.metadata_props}:
        proto.metadata_props.add(key=METADATA, value=str(batch))
    return replace(found, batch=batch)


def _read_columns(proto: onnx.ModelProto, path: Path) -> ExtractedColumns | None:
    """The columns that the reader finds, or else those of a graph of classes."""
    drop_proved_steps(proto.graph)
    graph = proto.graph
    nodes, inputs, constants = list(graph.node), list(graph.input), len(graph.initializer)
    try:
        return _extract(proto, path, {})
    except ModelError:
        for held, values in ((graph.node, nodes), (graph.input, inputs)):
            del held[:]
            held.extend(values)
        del graph.initializer[constants:]
        rewriting = ClassGraph(proto, path)
        classes = rewriting.rewrite()
        counted = count_boundaries(proto, path)
        if not classes and not counted:
            written = any(node.op_type in WRITTEN and node.domain != CONTRIB for node in nodes)
            if rewriting.refused and not written:
                raise ModelError(f"{path}: {rewriting.refused[0]}; {WAYS}") from None
            raise
    return _extract(proto, path, classes)


def _extract(proto: onnx.ModelProto, path: Path, classes: Mapping[str, ValueClasses]) -> ExtractedColumns | None:
    """`classes`: those of inputs that stand for features already, by input."""
    graph, reader = OnnxGraphIndex(proto, path), ColumnReader(proto, path)
    reader.read()
    classed = {name: own for name, own in classes.items() if not own.is_number}
    types = infer_element_types(proto) if classed else {}
    found = ClassColumns(graph, classed, types).find([output.name for output in proto.graph.output])
    given = put_sequences(proto, [column for column in found if column.sequence is not None])
    classes = {**classes, **given}
    found = [column for column in found if column.sequence is None]
    for column in found:
        reader.add_classes(column.tensor, column, graph.producer[column.tensor])
    if not reader.columns and not classes:
        if any(i.type.tensor_type.elem_type == TensorProto.STRING for i in proto.graph.input):
            raise ModelError(f"{path}: no column begins at its strings; {WAYS}")
        _check_taken(proto, path, reader)
        return None
    widths = {out: len(reader.tables[out][0]) if column.table else 1 for out, column in reader.columns.items()}
    joined = GraphRewriter(
        proto,
        path,
        [ColumnTensor(out, width, reader.origin[out]) for out, width in widths.items()],
        {column.tensor: [0, *column.row_shape] for column in found},
    ).rewrite()
    read = {name for node in proto.graph.node for name in node.input} | {output.name for output in proto.graph.output}
    for name in [name for name in classes if name in read]:
        own = classes[name]
        if own.separator is not None and own.places is None:
            raise ModelError(
                f"{path}: input {own.feature!r}: what becomes of its tokens is no sum or mean of rows for each text, "
                "and no sequence of fixed length; expected one of them (an output_sequence_length, a mask, a combiner)"
            )
        reader.add_classes(name, classes[name])
        joined = (*joined, ColumnInput(name=name, columns=(name,)))
    _check_taken(proto, path, reader)
    numbers = [tensor for tensor in proto.graph.initializer if tensor.data_type != TensorProto.STRING]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(numbers)
    named = tuple(FeatureTable(name=name, rows=len(rows), dim=rows.shape[1]) for name, rows in reader.tables.items())
    features, columns = tuple(reader.features.values()), tuple(reader.columns.values())
    description = FeatureDescription(features=features, columns=columns, inputs=joined, tables=named, path=path)
    return ExtractedColumns(description, reader.tables)


def _check_taken(proto: onnx.ModelProto, path: Path, reader: ColumnReader) -> None:
    """Raises ModelError for a node that reads text, or a feature, beside the columns."""
    index = OnnxGraphIndex(proto, path)
    for node in proto.graph.node:
        foreign = is_textual(node, index) or node.op_type in FOREIGN or is_hash(node)
        if foreign or any(name in reader.features for name in node.input):
            raise ModelError(f"{path}: node {node.name!r}: operator {node.op_type} reads what no column does; {WAYS}")
