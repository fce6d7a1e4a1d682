"""Columns that ONNX operators spell out: text or numbers through a label encoder to rows of a table, as a description.

RECom's Algorithm 1 finds the operators that belong to one table alone. The operators between encoder and lookup work on
numbers that are known, so they are carried out when the model is compiled, and a vocabulary is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from veltair.compiler.features.feature_description import DEFAULT_TEXT_BYTES, Feature, FeatureColumn
from veltair.compiler.features.fingerprint import fingerprint64
from veltair.compiler.features.from_onnx.bucketize_pattern import BucketizePattern, find_bucketize
from veltair.compiler.features.from_onnx.classes.class_columns import ClassColumn
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses
from veltair.compiler.features.from_onnx.hash_buckets import HASHES, MOST_BUCKETS, find_hashed, is_hash, read_buckets
from veltair.compiler.features.from_onnx.id_operators import NUMERIC, apply_operators, find_encoder
from veltair.compiler.features.from_onnx.identify_columns import LOOKUPS, gathered_tables, identify_columns
from veltair.compiler.features.from_onnx.key_sources import CASES, KeySource, find_key_source
from veltair.compiler.features.from_onnx.label_encoders import ENCODERS, KeyEncoding, encodes_features, read_encoding
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.onnx.node_attributes import attribute
from veltair.errors import ModelError

TEXTUAL = (
    *ENCODERS,
    *HASHES,
    "StringSplit",
    "StringNormalizer",
    "StringConcat",
    "RegexFullMatch",
    *CASES,
    "StringStrip",
)
FeatureKind: TypeAlias = Literal["int", "float", "string", "tokens"]
MOST_TEXT_BYTES = 1 << 24  # of a row
WAYS = (
    "text goes through StringConcat, StringNormalizer, StringSplit, LabelEncoder, CategoryMapper or "
    "StringToHashBucketFast to a Gather of a constant table, or is cast"
)


def is_textual(node: onnx.NodeProto, graph: OnnxGraphIndex) -> bool:
    """Whether a node reads text, or the values of a feature, as columns do."""
    return encodes_features(node, graph) if node.op_type in ENCODERS else node.op_type in TEXTUAL


def text_room(metadata: Mapping[str, str], path: Path, default: int = DEFAULT_TEXT_BYTES) -> int:
    """Bytes for a text, on average over a batch, that a file's metadata states. Raises ModelError for other values.

    >>> text_room({"veltair.max_bytes": "512"}, Path("m.onnx"))
    512
    """
    stated = metadata.get("veltair.max_bytes", str(default))
    if not stated.isdecimal() or not 1 <= int(stated) <= MOST_TEXT_BYTES:
        raise ModelError(f"{path}: metadata veltair.max_bytes is {stated!r}; expected 1 to {MOST_TEXT_BYTES}")
    return int(stated)


def raw_feature(name: str, kind: FeatureKind, room: int, *, width: int = 1, separator: str = ",") -> Feature:
    """A feature of which operators of ONNX read every value. `room`: bytes for each of its texts.

    >>> raw_feature("city", "string", 256, width=2).max_bytes
    512
    """
    room *= width if kind == "string" else 1
    return Feature(
        name=name,
        kind=kind,
        missing=False,
        empty="keep",
        width=width,
        separator=separator,
        max_bytes=min(room, MOST_TEXT_BYTES),
    )


class ColumnReader:
    """Reads the columns of a graph: `columns`, their `features` and `tables`.

    `columns`, `tables` and `origin`, the lookup or encoder that a column comes from, are by the tensor that it gives.
    """

    def __init__(self, proto: onnx.ModelProto, path: Path) -> None:
        self.graph, self._proto = OnnxGraphIndex(proto, path), proto.graph
        self._metadata = {entry.key: entry.value for entry in proto.metadata_props}
        self._buckets = find_bucketize(self.graph, NUMERIC)
        encoders = [node.name for node in self.graph.nodes if encodes_features(node, self.graph) or is_hash(node)]
        self._encoders = (*encoders, *self._buckets)
        self.features: dict[str, Feature] = {}
        self.columns: dict[str, FeatureColumn] = {}
        self.origin: dict[str, onnx.NodeProto] = {}
        self.tables: dict[str, NDArray[np.float32]] = {}

    def read(self) -> None:
        nodes = self.graph.nodes
        by_name = {node.name: node for node in nodes}
        for subgraph in identify_columns(nodes, gathered_tables(self._proto)):
            members = [by_name[name] for name in subgraph.operators]
            if any(is_textual(node, self.graph) or node.name in self._buckets for node in members):
                for lookup in (n for n in members if n.op_type in LOOKUPS and n.input[0] == subgraph.table):
                    self._lookup(lookup)
        for node in nodes:
            if encodes_features(node, self.graph) and self._encoding(node).values.dtype.kind == "f":
                self._floats(node)
            elif node.op_type == "Cast" and self._is_text(node.input[0]):
                self._number(node)

    def _lookup(self, lookup: onnx.NodeProto) -> None:
        encoder, between = find_encoder(lookup, self.graph, self._encoders)
        buckets = self._buckets.get(encoder.name)
        if buckets is not None:
            self._bucketized(lookup, between, encoder, buckets)
            return
        if is_hash(encoder):
            self._hashed(lookup, between, encoder)
            return
        found, source = self._encoding(encoder), find_key_source(encoder, self.graph)
        rows = self._rows(lookup, self._ids(lookup, between, encoder, found.values))
        out, combiner = lookup.output[0], None
        if source.split is not None:
            self._check_padding(lookup, rows[found.keys.index("") if "" in found.keys else -1])
            out, combiner = self._reduced(lookup, source.split)
        self._add(out, lookup, source, found.keys, rows, combiner)

    def _ids(
        self, lookup: onnx.NodeProto, between: Sequence[onnx.NodeProto], encoder: onnx.NodeProto, ids: NDArray[Any]
    ) -> NDArray[np.int64]:
        """What becomes of an encoder's ids on their way to the lookup."""
        return apply_operators(between, encoder.output[0], lookup.input[1], ids, self.graph)

    def _rows(self, lookup: onnx.NodeProto, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """What a lookup gives for ids: a row of zeros for an id that is no row."""
        table = np.asarray(self.graph.constant(lookup.input[0]), np.float32)
        ids = np.where(ids < 0, ids + len(table), ids)  # ONNX counts from the end
        rows = np.zeros((len(ids), table.shape[1]), np.float32)
        inside = (ids >= 0) & (ids < len(table))
        rows[inside] = table[ids[inside]]
        return rows

    def _bucketized(
        self,
        lookup: onnx.NodeProto,
        between: Sequence[onnx.NodeProto],
        encoder: onnx.NodeProto,
        buckets: BucketizePattern,
    ) -> None:
        out, source = lookup.output[0], buckets.source
        self._feature(source, lookup)
        self.tables[out] = self._rows(lookup, self._ids(lookup, between, encoder, buckets.counts))
        self.origin[out] = lookup
        self.columns[out] = FeatureColumn(
            feature=source.name, name=out, boundaries=buckets.edges, default=buckets.nan, table=out
        )

    def _hashed(self, lookup: onnx.NodeProto, between: Sequence[onnx.NodeProto], encoder: onnx.NodeProto) -> None:
        """A row for each bucket: what the operators before the lookup make of its number is the row's place."""
        source, buckets, out = find_hashed(encoder, self.graph), read_buckets(encoder, self.graph), lookup.output[0]
        table = self.graph.weights[lookup.input[0]].dims[0]
        if buckets > (MOST_BUCKETS if between else table):
            most = f"at most {MOST_BUCKETS} where operators stand between" if between else f"no more than {table} rows"
            raise self.graph.error(encoder, f"{buckets} buckets before the lookup {lookup.name!r}; expected {most}")
        rows, combiner = self._rows(lookup, self._ids(lookup, between, encoder, np.arange(buckets))), None
        if source.split is not None:
            self._check_padding(lookup, rows[fingerprint64(b"") % buckets])
            out, combiner = self._reduced(lookup, source.split)
        self._feature(source, lookup)
        self.tables[out], self.origin[out] = rows, lookup
        self.columns[out] = FeatureColumn(feature=source.name, name=out, hash=buckets, table=out, combiner=combiner)

    def _check_padding(self, lookup: onnx.NodeProto, row: NDArray[np.float32]) -> None:
        """Refuses a lookup whose row for an empty text counts, since StringSplit makes empty texts."""
        if row.any():
            raise self.graph.error(
                lookup, "an empty string, which StringSplit pads with, leads to a row that is not zero"
            )

    def _floats(self, encoder: onnx.NodeProto) -> None:
        """An encoder that gives numbers: rows of one."""
        source, found = find_key_source(encoder, self.graph), self._encoding(encoder)
        if source.split is not None:
            raise self.graph.error(encoder, "gives numbers for tokens; expected ids that a Gather reads")
        self._add(encoder.output[0], encoder, source, found.keys, found.values[:, None], None)

    def _number(self, cast: onnx.NodeProto) -> None:
        source, out = find_key_source(cast, self.graph), cast.output[0]
        if source.split is not None or attribute(cast, "to", 0) != TensorProto.FLOAT:
            raise self.graph.error(cast, "text is cast to one float32 a row alone")
        self._feature(source, cast)
        self.columns[out], self.origin[out] = FeatureColumn(feature=source.name, name=out, number=True), cast

    def _add(
        self,
        out: str,
        origin: onnx.NodeProto,
        source: KeySource,
        keys: tuple[str | int, ...],
        rows: NDArray[np.float32],
        combiner: Literal["sum", "mean"] | None,
    ) -> None:
        """A column whose keys lead to the first rows, in their order; any other key leads to the last row."""
        self._feature(source, origin)
        for part in source.parts:
            if part.feature not in (None, source.name):
                self._feature(KeySource(str(part.feature), "string"), origin)
        if any(part.unicode for part in source.parts) and not all(str(key).isascii() for key in keys):
            raise self.graph.error(origin, 'a key is not ASCII behind a StringNormalizer whose locale is not "C"')
        if source.kind != "int" and not all(isinstance(key, str) for key in keys):
            raise self.graph.error(origin, "keys are numbers, what is encoded is text")
        self.tables[out], self.origin[out] = rows, origin
        self.columns[out] = FeatureColumn(
            feature=source.name,
            name=out,
            vocabulary=keys,
            default=len(keys),
            table=out,
            combiner=combiner,
            parts=source.parts,
        )

    def add_classes(self, out: str, found: ValueClasses | ClassColumn, origin: onnx.NodeProto | None = None) -> None:
        """A column that gives the classes of a feature's values, or the rows of classes."""
        classes = found if isinstance(found, ValueClasses) else found.classes
        if classes.crossed:
            read = [self._know_feature(part.feature, part.kind, width=part.width) for part in classes.crossed]
        else:
            read = [self._know_feature(classes.feature, classes.kind, width=classes.width)]
        if not all(read):
            names = ", ".join(map(repr, classes.features))
            raise ModelError(f"{self.graph.path}: input {names} is read whole and split")
        if isinstance(found, ValueClasses):
            self.columns[out] = found.column(out, None)
        elif origin is not None:
            self.columns[out] = (found.bag or found.classes).column(out, out)
            self.tables[out], self.origin[out] = found.rows, origin

    def _know_feature(self, name: str, kind: FeatureKind, *, width: int = 1, separator: str = ",") -> bool:
        """Note that the graph reads this feature. Returns whether all that was noted of it before agrees."""
        feature = raw_feature(name, kind, text_room(self._metadata, self.graph.path), width=width, separator=separator)
        return self.features.setdefault(name, feature) == feature

    def _feature(self, source: KeySource, node: onnx.NodeProto) -> None:
        if not self._know_feature(source.name, source.kind, separator=source.separator):
            raise self.graph.error(node, f"input {source.name!r} is read whole and split, or split in two ways")

    # Operators behind the lookup, and small questions.

    def _reduced(self, lookup: onnx.NodeProto, split: onnx.NodeProto) -> tuple[str, Literal["sum", "mean"]]:
        """The tensor that the rows of a text's tokens are reduced to, and the combiner."""
        user = self.graph.only_user(lookup.output[0])
        if user is None or user.op_type != "ReduceSum":
            what = f"{user.op_type} {user.name!r}" if user else "several operators"
            expected = (
                "ReduceSum, and behind it, for the mean, Div by the counts of StringSplit (ReduceMean counts the "
            )
            raise self.graph.error(lookup, f"rows of tokens go to {what}; expected {expected}padding)")
        axes = self.graph.constant(user.input[1]) if len(user.input) > 1 else None
        if axes is None or axes.reshape(-1).tolist() not in ([1], [-2]) or attribute(user, "keepdims", 1):
            raise self.graph.error(user, "expected a sum over axis 1, without keepdims")
        divide = self.graph.only_user(user.output[0])
        if divide is None or divide.op_type != "Div" or divide.input[0] != user.output[0]:
            return user.output[0], "sum"
        name = divide.input[1]
        while name != split.output[1]:
            node = self.graph.producer.get(name)
            if node is None or node.op_type not in ("Cast", "Max", "Clip", *VIEWS):
                return user.output[0], "sum"
            name = node.input[0]
        return divide.output[0], "mean"

    def _is_text(self, name: str) -> bool:
        node = self.graph.producer.get(name)
        if node is not None:
            split = node.op_type == "StringSplit" and name == node.output[0]
            return split or (node.op_type in VIEWS and self._is_text(node.input[0]))
        return name in self.graph.inputs and self.graph.type_of(name) == TensorProto.STRING

    def _encoding(self, node: onnx.NodeProto) -> KeyEncoding:
        try:
            return read_encoding(node)
        except (ValueError, TypeError, OverflowError) as error:
            raise self.graph.error(node, str(error)) from None
