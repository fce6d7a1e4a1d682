"""Takes the columns of an ONNX model out of it: those that its operators spell, and those of classes of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
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
from veltair.compiler.features.from_onnx.column_reader import (
    TEXTUAL,
    WAYS,
    ColumnReader,
    is_textual,
    raw_feature,
    text_room,
)
from veltair.compiler.features.from_onnx.graph_rewriter import ColumnTensor, GraphRewriter, infer_element_types
from veltair.compiler.features.from_onnx.hash_buckets import CONTRIB, is_hash
from veltair.compiler.features.from_onnx.id_operators import NUMERIC
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.features.from_onnx.safety_steps import drop_proved_steps
from veltair.compiler.features.from_onnx.standard_copy import FOREIGN, count_boundaries
from veltair.compiler.features.from_onnx.tokens.fixed_batch import open_batch
from veltair.compiler.features.from_onnx.tokens.split_nodes import put_sequences
from veltair.compiler.features.text_graphs.text_graph import TextGraph, take_text_graph
from veltair.errors import ModelError

METADATA = "veltair.max_batch"  # the greatest batch of a model whose first dimension is symbolic
DOCUMENT_BYTES = 4096  # room for a text that no column reads, where the file does not say it
MOVES = ("Cast", "Concat", "Equal", "Gather", "Where")  # operators on text beside those that only texts have
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
    texts: TextGraph | None = None  # operators on text that ONNX Runtime runs in front of the model


def extract_columns(proto: onnx.ModelProto, path: Path, *, fallback: bool = True) -> ExtractedColumns | None:
    """Replaces columns by the inputs that they give, in place; None where there are none. Every node has a name.

    `fallback`: whether ONNX Runtime may run operators on text that no column takes. Raises ModelError that names the
    node which cannot be taken.
    """
    index = OnnxGraphIndex(proto, path)
    foreign = any(is_textual(node, index) or node.op_type in FOREIGN for node in proto.graph.node)
    foreign |= any(i.type.tensor_type.elem_type == TensorProto.STRING for i in proto.graph.input)
    if not foreign and not find_bucketize(index, NUMERIC):
        return None
    batch = open_batch(proto)
    drop_proved_steps(proto.graph)
    found = _read_some(proto, path) if fallback else _read_columns(proto, path)
    if found is None or batch is None:
        return found
    if METADATA not in {entry.key for entry in proto.metadata_props}:
        proto.metadata_props.add(key=METADATA, value=str(batch))
    return replace(found, batch=batch)


def _read_some(proto: onnx.ModelProto, path: Path) -> ExtractedColumns | None:
    """All columns. Where some operators on text are none, ONNX Runtime gets their texts, or else all texts."""
    given = _Structure.of(proto.graph)
    try:
        return _read_columns(proto, path)
    except ModelError as error:
        refused, why = error, ""
    for is_taken in (_may_be_taken, None):
        given.restore(proto.graph)
        try:
            texts = take_text_graph(proto, path, is_taken)
            if texts is not None:
                return _with_texts(_read_columns(proto, path), texts, proto, path)
        except ModelError as error:
            why = str(error).removeprefix(f"{path}: ")
    raise ModelError(f"{refused}; nor can ONNX Runtime run it in front: {why}") if why else refused


@dataclass(frozen=True, slots=True)
class _Structure:
    """A graph but for its constants, as it was. Whoever changes it replaces nodes, and changes none in place."""

    nodes: Sequence[onnx.NodeProto]
    inputs: Sequence[onnx.ValueInfoProto]
    constants: int

    @classmethod
    def of(cls, graph: onnx.GraphProto) -> _Structure:
        return cls(list(graph.node), list(graph.input), len(graph.initializer))

    def restore(self, graph: onnx.GraphProto) -> None:
        del graph.node[:], graph.input[:], graph.initializer[self.constants :]
        graph.node.extend(self.nodes)
        graph.input.extend(self.inputs)


def _may_be_taken(node: onnx.NodeProto) -> bool:
    return node.op_type in (*TEXTUAL, *VIEWS, *MOVES)


def _with_texts(
    found: ExtractedColumns | None, texts: TextGraph, proto: onnx.ModelProto, path: Path
) -> ExtractedColumns:
    """The columns, if there are some, and the features of a text graph."""
    _drop_tables_of_text(proto.graph)
    empty = FeatureDescription(features=(), columns=(), inputs=(), path=path)
    columns = found or ExtractedColumns(empty, {})
    room = text_room({entry.key: entry.value for entry in proto.metadata_props}, path, DOCUMENT_BYTES)
    features = [raw_feature(text.name, "string", room, width=text.width) for text in texts.inputs]
    description = msgspec.structs.replace(
        columns.description,
        features=(*columns.description.features, *features),
        texts=dict.fromkeys((text.name for text in texts.inputs), texts.words),
    )
    return replace(columns, description=description, texts=texts)


def _read_columns(proto: onnx.ModelProto, path: Path) -> ExtractedColumns | None:
    """The columns that the reader finds, or else those of a graph of classes."""
    given = _Structure.of(proto.graph)
    try:
        return _extract(proto, path, {})
    except ModelError:
        given.restore(proto.graph)
        rewriting = ClassGraph(proto, path)
        classes = rewriting.rewrite()
        counted = count_boundaries(proto, path)
        if not classes and not counted:
            written = any(node.op_type in WRITTEN and node.domain != CONTRIB for node in given.nodes)
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
    _drop_tables_of_text(proto.graph)
    named = tuple(FeatureTable(name=name, rows=len(rows), dim=rows.shape[1]) for name, rows in reader.tables.items())
    features, columns = tuple(reader.features.values()), tuple(reader.columns.values())
    description = FeatureDescription(features=features, columns=columns, inputs=joined, tables=named, path=path)
    return ExtractedColumns(description, reader.tables)


def _drop_tables_of_text(graph: onnx.GraphProto) -> None:
    numbers = [tensor for tensor in graph.initializer if tensor.data_type != TensorProto.STRING]
    if len(numbers) < len(graph.initializer):
        del graph.initializer[:]
        graph.initializer.extend(numbers)


def _check_taken(proto: onnx.ModelProto, path: Path, reader: ColumnReader) -> None:
    """Raises ModelError for a node that reads text, or a feature, beside the columns."""
    index = OnnxGraphIndex(proto, path)
    for node in proto.graph.node:
        foreign = is_textual(node, index) or node.op_type in FOREIGN or is_hash(node)
        if foreign or any(name in reader.features for name in node.input):
            raise ModelError(f"{path}: node {node.name!r}: operator {node.op_type} reads what no column does; {WAYS}")
