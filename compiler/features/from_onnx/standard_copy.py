"""A model whose columns' foreign operators are standard ones, so that ONNX Runtime alone can run it.

`Bucketize` becomes comparisons that are counted. ONNX has no hash: features become inputs that hold the classes of
their values (`ClassedValues`), or, where other operators on text read them, the buckets do (`HashedIds`). The
reference computes both from the features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.fingerprint import fingerprint64
from veltair.compiler.features.from_onnx.bucketize_pattern import TENSORFLOW, read_boundaries
from veltair.compiler.features.from_onnx.classes.class_graph import ClassGraph
from veltair.compiler.features.from_onnx.classes.value_classes import ValueClasses
from veltair.compiler.features.from_onnx.crosses import CROSS
from veltair.compiler.features.from_onnx.hash_buckets import CONTRIB, STRONG, find_hashed, is_hash, read_buckets
from veltair.compiler.features.from_onnx.key_sources import KeySource
from veltair.compiler.features.from_onnx.known_locales import name_known_locales
from veltair.compiler.features.from_onnx.onnx_graph_index import VIEWS, OnnxGraphIndex
from veltair.compiler.features.from_onnx.tokens.fixed_batch import open_batch
from veltair.compiler.onnx.node_attributes import attribute, name_nodes
from veltair.profiles.artifact.strings import Strings

FOREIGN = (TENSORFLOW, CROSS, STRONG)  # operators that TensorFlow's conversion writes, which only columns take


@dataclass(frozen=True, slots=True)
class HashedIds:
    """An input that stands for a hash.

    >>> HashedIds("ids", KeySource("city", "string"), 3, 1).values(Strings.from_values([b"Hello", b"2.x"]))
    array([0, 2])
    """

    name: str
    source: KeySource  # where the hashed values come from
    buckets: int
    rank: int  # of the feature's input: (batch,), (batch, 1)

    @property
    def feature(self) -> str:
        return self.source.name

    def values_in(self, raw: Mapping[str, Any]) -> NDArray[np.int64]:
        """The buckets, from the values of all features."""
        return self.values(raw[self.feature])

    def values(self, given: Strings | NDArray[Any]) -> NDArray[np.int64]:
        """The buckets of a feature's values, in the shape of its input; tokens in one more dimension, padded."""
        if isinstance(given, Strings):
            texts = list(given.tolist())
        else:
            texts = [b"%d" % number for number in given.reshape(-1).tolist()]
        shape: tuple[int, ...] = (len(texts), 1)[: self.rank]
        if self.source.split is not None:
            rows = [text.split(self.source.separator.encode()) if text else [] for text in texts]
            most = max(map(len, rows), default=0)
            texts = [token for row in rows for token in (row + [b""] * most)[:most]]
            shape = (*shape, most)
        return np.array([fingerprint64(text) % self.buckets for text in texts], np.int64).reshape(shape)


@dataclass(frozen=True, slots=True)
class ClassedValues:
    """An input that stands for a feature: the classes of its values (`class_graph`).

    >>> classed = ClassedValues("city/classes", ValueClasses("city", "string", buckets=3))
    >>> classed.values_in({"city": Strings.from_values([b"2.x"])})
    array([2])
    """

    name: str
    classes: ValueClasses

    @property
    def feature(self) -> str:
        return self.classes.feature

    def values_in(self, raw: Mapping[str, Any]) -> NDArray[Any]:
        """The classes, from the values of all features; the values themselves of one that has no classes."""
        if self.classes.is_number:
            return np.asarray(raw[self.feature], np.float32).reshape(-1, self.classes.width)
        return self.classes.of_cross(raw) if self.classes.crossed else self.classes.of(raw[self.feature])


def standard_copy(path: Path) -> tuple[onnx.ModelProto, list[HashedIds | ClassedValues]] | None:
    """The model of a file without foreign operators and locales that few systems have, with a symbolic batch, and its
    new inputs; None where the file is such a model.

    External data stays outside. Raises ModelError for a hash that is no column's.
    """
    proto = onnx.load(str(path), load_external_data=False)
    foreign = any(node.domain == CONTRIB or node.op_type in FOREIGN for node in proto.graph.node)
    textual = any(value.type.tensor_type.elem_type == TensorProto.STRING for value in proto.graph.input)
    batch = open_batch(proto) if foreign or textual else None
    named = name_known_locales(proto.graph)
    if not foreign:
        return None if batch is None and not named else (proto, [])
    name_nodes(proto)
    classes = ClassGraph(proto, path).rewrite()
    count_boundaries(proto, path)
    hashed: list[HashedIds | ClassedValues] = [ClassedValues(name, own) for name, own in classes.items()]
    graph, nodes = OnnxGraphIndex(proto, path), list[onnx.NodeProto]()
    for node in proto.graph.node:
        if is_hash(node):
            source = find_hashed(node, graph)
            ids = HashedIds(f"{node.output[0]}/ids", source, read_buckets(node, graph), graph.rows(source.name) or 1)
            hashed.append(ids)
            dims = ["B", 1][: ids.rank] + ["tokens"] * (source.split is not None)
            proto.graph.input.append(helper.make_tensor_value_info(ids.name, TensorProto.INT64, dims))
            nodes += _views(node, ids.name, graph)
        else:
            nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto, hashed


def count_boundaries(proto: onnx.ModelProto, path: Path) -> bool:
    """Puts comparisons in the place of each Bucketize, in place. Returns whether there was one.

    Raises ModelError for boundaries that are none.
    """
    graph, index, found, nodes = proto.graph, OnnxGraphIndex(proto, path), False, list[onnx.NodeProto]()
    for node in graph.node:
        if node.op_type == TENSORFLOW:
            read_boundaries(node, index)
            nodes += _counted(node, graph)
            found = True
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    return found


def _views(node: onnx.NodeProto, ids: str, graph: OnnxGraphIndex) -> list[onnx.NodeProto]:
    """The views between a feature, or its tokens, and its hash, on the ids instead of the texts."""
    views, name = list[onnx.NodeProto](), node.input[0]
    while (before := graph.producer.get(name)) is not None and before.op_type in (*VIEWS, "Cast"):
        if before.op_type != "Cast":
            views.insert(0, before)
        name = before.input[0]
    found, given = list[onnx.NodeProto](), ids
    for place, view in enumerate(views):
        copy = onnx.NodeProto()
        copy.CopyFrom(view)
        copy.name = f"{ids}/view{place}"
        copy.input[0], copy.output[0] = given, copy.name
        given = copy.name
        found.append(copy)
    return [*found, helper.make_node("Identity", [given], [node.output[0]], f"{ids}/end")]


def _counted(node: onnx.NodeProto, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Boundaries that a number is not below: all but those that it is below. NaN is below none.

    A `Not` behind the comparison would invite compilers to compare the other way, which holds for no NaN.
    """
    out, edges = node.output[0], np.array(attribute(node, "boundaries", []), np.float32)
    axis = numpy_helper.from_array(np.array([-1]), f"{out}/axis")
    all_ = numpy_helper.from_array(np.array(len(edges), np.int32), f"{out}/all")
    graph.initializer.extend([axis, all_, numpy_helper.from_array(edges, f"{out}/edges")])
    steps: tuple[tuple[str, list[str], str, dict[str, int]], ...] = (
        ("Cast", [node.input[0]], f"{out}/number", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", [f"{out}/number", axis.name], f"{out}/raised", {}),
        ("Less", [f"{out}/raised", f"{out}/edges"], f"{out}/below", {}),
        ("Cast", [f"{out}/below"], f"{out}/ones", {"to": TensorProto.INT32}),
        ("ReduceSum", [f"{out}/ones", axis.name], f"{out}/many", {"keepdims": 0}),
        ("Sub", [all_.name, f"{out}/many"], out, {}),
    )
    return [helper.make_node(op, reads, [made], made, **more) for op, reads, made, more in steps]
