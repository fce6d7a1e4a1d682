"""Crosses of features: TensorFlow's `SparseCross`, which tf2onnx leaves as it is, becomes an input of buckets.

`tf.feature_column.crossed_column` and Keras' `HashedCrossing` write it. It takes texts and whole numbers as they are,
and sparse or dense tensors that the graph makes of a feature: intervals of a number, places of keys. What stands for
each class of such a feature is computed by ONNX Runtime. It gives a sparse tensor: indices, values and shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.feature_description import CrossPart
from veltair.compiler.features.fingerprint import fingerprint64
from veltair.compiler.features.from_onnx.classes.value_classes import CrossedFeature, ValueClasses
from veltair.compiler.features.from_onnx.hash_buckets import BUCKETS_LIMIT
from veltair.compiler.features.from_onnx.onnx_graph_index import OnnxGraphIndex
from veltair.compiler.features.from_onnx.safety_steps import nodes_needed
from veltair.compiler.onnx.node_attributes import attribute

CROSS = "SparseCross"
EXPECTED = (
    "expected texts or whole numbers of an input with a symbolic batch, [batch, values], intervals and places of keys "
    "that are made of one, or whole numbers within bounds"
)
MOST_CLASSES = 1 << 20  # of a feature whose places are crossed
TRIED_ROWS = 64
FAR = (1 << 31, (1 << 31) + 1, 1 << 40, (1 << 62) - 1)  # numbers that no key is near, and their opposites
Kind: TypeAlias = Literal["int", "float", "string"]
Values: TypeAlias = list[int | Literal[False]]  # by class
Numbers: TypeAlias = list[list[int]]  # by row


class CrossReader:
    """Takes the crosses out of a graph in which features are classes already.

    Args:
        classes: what inputs stand for, by name.
        raw: the feature whose values a tensor holds, by tensor.
        features: kind and values of a row of each feature, by name.

    Use::

        CrossReader(proto, OnnxGraphIndex(proto, path), classes, raw, features).take()
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        graph: OnnxGraphIndex,
        classes: Mapping[str, ValueClasses],
        raw: Mapping[str, str],
        features: Mapping[str, tuple[Kind, int]],
    ) -> None:
        self._proto, self._graph, self._classes = proto, graph, classes
        self._raw, self._features = raw, features
        self.refused: Mapping[str, str] = {}  # why the values of a feature are not known, by feature

    def take(self) -> dict[str, ValueClasses]:
        """Puts an input [batch, combinations] of buckets, int64, in the place of each cross.

        Returns what they stand for. Raises ModelError for a cross of anything else than EXPECTED.
        """
        found, nodes = dict[str, ValueClasses](), list[onnx.NodeProto]()
        for node in self._proto.graph.node:
            if node.op_type != CROSS:
                nodes.append(node)
                continue
            name = f"{node.name}/buckets"
            found[name] = own = self._read(node)
            shape = ["batch", own.width]
            self._proto.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
            nodes += _as_sparse(self._proto, node, name, own.buckets)
        if found:
            outputs = {output.name for output in self._proto.graph.output}
            nodes = self._without_shapes(nodes, found)
            nodes = nodes_needed(nodes, outputs)
            read = {name for node in nodes for name in node.input} | outputs
            crossed = {name for classes in found.values() for name in classes.features}
            made = {name for name, classes in self._classes.items() if crossed & set(classes.features)}
            kept = [v for v in self._proto.graph.input if v.name in read or v.name not in crossed | made]
            for held, values in ((self._proto.graph.node, nodes), (self._proto.graph.input, kept)):
                del held[:]
                held.extend(values)
        return found

    def _without_shapes(
        self, nodes: Sequence[onnx.NodeProto], found: Mapping[str, ValueClasses]
    ) -> list[onnx.NodeProto]:
        """The nodes; those that ask for the shape of a crossed feature ask for that of as many zeros."""
        crossed = {name for classes in found.values() for name in classes.features}
        left: list[onnx.NodeProto] = []
        for node in nodes:
            feature = self._raw.get(node.input[0]) if node.op_type == "Shape" else None
            if feature not in crossed:
                left.append(node)
                continue
            name = f"{node.output[0]}/zeros"
            extents = [dim.dim_value for dim in self._graph.inputs[feature].type.tensor_type.shape.dim][1:]
            constants = {f"{name}/rest": np.array(extents, np.int64), f"{name}/zero": np.array(0.0, np.float32)}
            self._proto.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
            left += [
                helper.make_node("Shape", [next(iter(found))], [f"{name}/rows"], f"{name}/rows", end=1),
                helper.make_node(
                    "Concat", [f"{name}/rows", f"{name}/rest"], [f"{name}/shape"], f"{name}/shape", axis=0
                ),
                helper.make_node("Expand", [f"{name}/zero", f"{name}/shape"], [name], name),
            ]
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[0] = name
            left.append(copy)
        return left

    def _read(self, node: onnx.NodeProto) -> ValueClasses:
        buckets = int(attribute(node, "num_buckets", 0))
        if not attribute(node, "hashed_output", 0) or not 1 <= buckets <= BUCKETS_LIMIT:
            raise self._graph.error(node, f"{buckets} buckets; expected values that are hashed to 1 to {BUCKETS_LIMIT}")
        sparse, inputs = int(attribute(node, "N", 0)), list(node.input)
        if not 0 <= 3 * sparse <= len(inputs) or len(inputs) - 2 * sparse < 2:
            raise self._graph.error(node, f"{len(inputs)} inputs with {sparse} sparse tensors; expected two at least")
        parts = [self._part(node, (inputs[at], inputs[sparse + at])) for at in range(sparse)]
        parts += [self._part(node, (name,)) for name in inputs[3 * sparse :]]
        kind = parts[0].kind
        return ValueClasses(
            parts[0].feature,
            kind,
            buckets=buckets,
            width=prod(part.width for part in parts),
            crossed=tuple(parts),
            cross_key=int(attribute(node, "hash_key", 0)),
        )

    def _part(self, node: onnx.NodeProto, tensors: Sequence[str]) -> CrossedFeature:
        """`tensors`: a dense one, or indices and values of a sparse one."""
        name = self._raw.get(tensors[0]) if len(tensors) == 1 else None
        if name is not None:
            kind, width = self._features[name]
            if kind != "float":
                return CrossedFeature(CrossPart(feature=name), kind, width)
        nodes = self._graph.nodes_before(*tensors)
        read = {name for member in nodes for name in member.input} | set(tensors)
        inputs = sorted(read & self._graph.inputs.keys() - self._graph.weights.keys())
        classes = self._classes.get(inputs[0]) if len(inputs) == 1 else None
        if len(inputs) == 1 and inputs[0] in self._features and self._features[inputs[0]][0] == "int":
            found = self._integers(nodes, tensors, inputs[0])
            if found is not None:
                return found
        if classes is None or classes.is_number or classes.count > MOST_CLASSES:
            why = "; ".join(dict.fromkeys(self.refused[name] for name in inputs if name in self.refused))
            raise self._graph.error(node, f"crosses {tensors[-1]!r}; {why or EXPECTED}")
        values = self._values(nodes, tensors, inputs[0], classes)
        if values is None:
            raise self._graph.error(node, f"crosses {tensors[-1]!r}, not one number for each value; {EXPECTED}")
        return CrossedFeature(_as_part(classes, values), classes.kind, classes.width)

    def _values(
        self, nodes: Sequence[onnx.NodeProto], tensors: Sequence[str], given: str, classes: ValueClasses
    ) -> list[Values] | None:
        """The number that stands for each class, False for none, at each place of a row; one list where places do not
        matter. None where the tensors are not made so.
        """
        run = self._runner(nodes, tensors, given)
        width = classes.width
        whole = run(np.repeat(np.arange(classes.count)[:, None], width, 1)) if run is not None else None
        if run is None or whole is None or any(len(row) not in (0, width) for row in whole):
            return None
        values: list[Values] = [[row[place] if row else False for row in whole] for place in range(width)]
        drawn = np.random.default_rng(0).integers(0, classes.count, (TRIED_ROWS, width))
        members = [[values[place][own] for place, own in enumerate(row)] for row in drawn.tolist()]
        if run(drawn) != [[v for v in row if v is not False] for row in members]:
            return None
        return values if any(own != values[0] for own in values) else values[:1]

    def _integers(self, nodes: Sequence[onnx.NodeProto], tensors: Sequence[str], name: str) -> CrossedFeature | None:
        """A part that the graph makes of whole numbers, which it compares with constants: identity columns.

        Between the constants, and beyond them, it has to treat all numbers alike: as they are, as one, or as none.
        """
        width, run = self._features[name][1], self._runner(nodes, tensors, name)
        constants = [self._graph.constant(n) for n in {n for node in nodes for n in node.input}]
        limits = [int(c.item()) for c in constants if c is not None and c.size == 1 and c.dtype.kind in "iu"]
        limits = [limit for limit in limits if abs(limit) <= MOST_CLASSES] or [0]
        keys = range(min(limits) - 1, max(limits) + 2)
        if run is None or len(keys) > MOST_CLASSES or self._graph.type_of(name) != TensorProto.INT64:
            return None
        rng = np.random.default_rng(0)
        far = [*FAR, *rng.integers(2 * MOST_CLASSES, 1 << 40, TRIED_ROWS).tolist()]
        tried = np.array([*keys, *far, *(-number for number in far)])
        whole = run(np.repeat(tried[:, None], width, 1))
        if whole is None or any(len(set(row)) > 1 or len(row) not in (0, width) for row in whole):
            return None
        values: list[int | Literal[False]] = [row[0] if row else False for row in whole]
        drawn = rng.integers(0, len(tried), (TRIED_ROWS, width))
        members = [[values[place] for place in row] for row in drawn.tolist()]
        if run(tried[drawn]) != [[v for v in row if v is not False] for row in members]:
            return None
        part = _of_integers(name, dict(zip(keys, values, strict=False)), tried[len(keys) :], values[len(keys) :])
        return None if part is None else CrossedFeature(part, "int", width)

    def _runner(self, nodes: Sequence[onnx.NodeProto], tensors: Sequence[str], given: str) -> Any:
        """From classes (batch, width) to the numbers of each row; None where ONNX Runtime cannot carry it out."""
        weights = [self._graph.weights[n] for node in nodes for n in node.input if n in self._graph.weights]
        held = {weight.name: weight for weight in weights}
        value = self._graph.inputs[given]
        outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in tensors]
        graph = helper.make_graph(nodes, "part", [value], outputs, list(held.values()))
        model = helper.make_model(graph, opset_imports=self._graph.opsets, ir_version=8)
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        rank = len(value.type.tensor_type.shape.dim)
        try:
            session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception:  # ONNX Runtime raises its own types; what it cannot run is no part of a cross
            return None

        def run(classes: NDArray[np.int64]) -> Numbers | None:
            try:
                found = session.run(None, {given: classes if rank == 2 else classes.reshape(-1)})
            except Exception:  # as above
                return None
            numbers = np.asarray(found[-1])
            if numbers.dtype not in (np.int64, np.int32):
                return None
            if len(found) == 1:
                return list(numbers.tolist()) if numbers.shape == classes.shape else None
            rows: Numbers = [[] for _ in classes]
            for row, number in zip(np.asarray(found[0])[:, 0].tolist(), numbers.tolist(), strict=True):
                rows[row].append(number)
            return rows

        return run


def _as_part(classes: ValueClasses, values: Sequence[Values]) -> CrossPart:
    """A part whose places are a feature's classes. `values`: by place of a row, or once for all of them."""
    every = tuple(value for own in values for value in own)
    if classes.edges:
        return CrossPart(feature=classes.feature, boundaries=classes.edges, values=every)
    if classes.keys:
        return CrossPart(feature=classes.feature, vocabulary=classes.keys, oov=classes.buckets, values=every)
    key: str | int = "" if classes.kind == "string" else 0  # a vocabulary has a key at least, and this is in its bucket
    bucket = fingerprint64(str(key).encode()) % classes.buckets
    every = tuple(value for own in values for value in (own[bucket], *own))
    return CrossPart(feature=classes.feature, vocabulary=(key,), oov=classes.buckets, values=every)


def _of_integers(
    name: str,
    near: Mapping[int, int | Literal[False]],
    far: NDArray[np.int64],
    made: Sequence[int | Literal[False]],
) -> CrossPart | None:
    """The part that gives `near` of these numbers, and what it makes of those that are far; None for any other."""
    if list(made) == far.tolist():
        changed = [key for key, value in near.items() if value is False or value != key]
        if len(changed) > 1 or any(near[key] is not False for key in changed):
            return None
        return CrossPart(feature=name, missing=changed[0] if changed else None)
    if len({(value is False, value) for value in made}) > 1:
        return None
    other = made[0]
    known = [key for key, value in near.items() if (value is False, value) != (other is False, other)] or [0]
    return CrossPart(feature=name, vocabulary=tuple(known), values=(*(near[key] for key in known), other))


def _as_sparse(proto: onnx.ModelProto, node: onnx.NodeProto, name: str, buckets: int) -> list[onnx.NodeProto]:
    """The sparse tensor of a column of buckets; one that is as many as there are is absent."""
    most = numpy_helper.from_array(np.array(buckets), f"{name}/most")
    proto.graph.initializer.append(most)
    indices, values, shape = node.output
    steps = (
        ("Less", [name, most.name], f"{name}/there"),
        ("NonZero", [f"{name}/there"], f"{name}/places"),
        ("Transpose", [f"{name}/places"], f"{name}/indices"),
        ("GatherND", [name, f"{name}/indices"], values),
        ("Identity", [f"{name}/indices"], indices),
        ("Shape", [name], shape),
    )
    return [helper.make_node(op, reads, [made], f"{name}/{op}") for op, reads, made in steps if made]
