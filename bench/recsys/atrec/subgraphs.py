"""The subgraphs of AtRec's evaluation (Wang et al., section IV-C) with random inputs, fused and unfused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.zoo.recommendation.augru import augru

Arrays = dict[str, NDArray[Any]]
random = np.random.default_rng(0)


@dataclass(frozen=True)
class Counts:
    """Sums of one-hots as counts of ids, one column of the output for each id below `depth`."""

    depth: int
    weights: NDArray[np.float32] | None  # of a dense layer on the counts
    scatter_add: onnx.ModelProto  # ONNX's ScatterElements; its inputs are those of the subgraph

    def bincount(self, feeds: Arrays) -> NDArray[np.float32]:
        """The output by numpy: each row's ids are moved into a range of their own and counted."""
        parts = []
        for ids in feeds.values():
            moved = ids + np.arange(0, len(ids) * self.depth, self.depth)[:, None]
            counted = np.bincount(moved.reshape(-1), minlength=len(ids) * self.depth)
            parts.append(counted.astype(np.float32).reshape(len(ids), self.depth))
        found = np.concatenate(parts, axis=1)
        return found if self.weights is None else found @ self.weights


@dataclass(frozen=True)
class Subgraph:
    """A subgraph as it is, and as it runs without the fusion, with the inputs of both."""

    name: str
    kind: str
    model: onnx.ModelProto
    feeds: Arrays
    unfused: onnx.ModelProto | None = None  # the same one, lowered without patterns
    other_feeds: Arrays | None = None
    counts: Counts | None = None  # of one-hots: what peers need that add to counters and write no one-hots


def model(nodes: Sequence[onnx.NodeProto], feeds: Arrays, outputs: Sequence[str], constants: Arrays) -> onnx.ModelProto:
    """A model with float32 outputs; the first dimension of every input is the batch."""
    types = {"int64": TensorProto.INT64, "float32": TensorProto.FLOAT}
    given = [
        helper.make_tensor_value_info(name, types[str(array.dtype)], ["n", *array.shape[1:]])
        for name, array in feeds.items()
    ]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(list(nodes), "atrec", given, made, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def drawn(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def one_hot_sum(rows: int, columns: int, lookups: int, depth: int, width: int = 0) -> Subgraph:
    """Indicator columns side by side; with a width, followed by a dense layer."""
    feeds: Arrays = {f"ids{i}": random.integers(0, depth, (rows, lookups)) for i in range(columns)}
    constants: Arrays = {"depth": np.array(depth), "values": np.array([0, 1], np.float32), "axis": np.array([1])}
    nodes = []
    for i, name in enumerate(feeds):
        nodes.append(helper.make_node("OneHot", [name, "depth", "values"], [f"hot{i}"]))
        nodes.append(helper.make_node("ReduceSum", [f"hot{i}", "axis"], [f"sum{i}"], keepdims=0))
    nodes.append(helper.make_node("Concat", [f"sum{i}" for i in range(columns)], ["y" if not width else "x"], axis=1))
    if width:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        constants["w"] = drawn(columns * depth, width)
    product = f" x ({columns * depth}, {width})" if width else ""
    name = f"{columns} x ({rows}, {lookups}) ids of {depth}{product}"
    counts = Counts(depth, constants.get("w"), _scatter_add(feeds, depth, constants.get("w")))
    return Subgraph(name, "OneHotSum", model(nodes, feeds, ["y"], constants), feeds, counts=counts)


def _scatter_add(feeds: Arrays, depth: int, weights: NDArray[Any] | None) -> onnx.ModelProto:
    """Ones added up where ids point, in ONNX: what someone writes who cares for speed."""
    rows, lookups = next(iter(feeds.values())).shape
    constants: Arrays = {"zeros": np.zeros((rows, depth), np.float32), "ones": np.ones((rows, lookups), np.float32)}
    nodes = [
        helper.make_node("ScatterElements", ["zeros", name, "ones"], [f"sum.{name}"], axis=1, reduction="add")
        for name in feeds
    ]
    nodes.append(helper.make_node("Concat", [f"sum.{n}" for n in feeds], ["y" if weights is None else "x"], axis=1))
    if weights is not None:
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
        constants["w"] = weights
    return model(nodes, feeds, ["y"], constants)


def concat_sum(rows: int, columns: int, *shape: int) -> Subgraph:
    feeds: Arrays = {f"x{i}": drawn(rows, *shape) for i in range(columns)}
    nodes = [
        helper.make_node("Concat", list(feeds), ["x"], axis=1),
        helper.make_node("ReduceSum", ["x", "axis"], ["y"], keepdims=0),
    ]
    constants: Arrays = {"axis": np.array([1])}
    return Subgraph(f"{columns} x {(rows, *shape)}", "ConcatSum", model(nodes, feeds, ["y"], constants), feeds)


def recurrent(rows: int, steps: int, inputs: int, hidden: int, scored: bool) -> Subgraph:
    """A GRU, or AUGRU as the zoo writes it, up to its last state."""
    feeds: Arrays = {"x": drawn(rows, steps, inputs)}
    made = augru("u", "x", "a", inputs, hidden, random)
    scan = made.nodes[-1]
    body = next(helper.get_attribute_value(a) for a in scan.attribute if a.name == "body")
    weights = {t.name.removeprefix("u.cell."): numpy_helper.to_array(t) for t in body.initializer}
    name = f"{rows} rows, {steps} steps, {inputs} to {hidden}"
    if scored:
        feeds["a"] = random.random((rows, steps, 1), dtype=np.float32)
        constants = {t.name: numpy_helper.to_array(t) for t in made.initializers}
        whole = model(made.nodes, feeds, [made.last], constants)
    else:
        gates, candidate = np.split(weights["gates.weight"], 2, axis=1), weights["candidate.weight"]
        columns = np.concatenate([gates[1], gates[0], candidate], axis=1)  # ONNX has the update gate first
        bias = np.concatenate([weights["gates.bias"], weights["candidate.bias"], np.zeros(3 * hidden, np.float32)])
        constants = {"w": columns[:inputs].T[None], "r": columns[inputs:].T[None], "b": bias[None]}
        constants["axis"] = np.array([0])
        nodes = [
            helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            helper.make_node("GRU", ["t", "w", "r", "b"], ["", "last"], hidden_size=hidden),
            helper.make_node("Squeeze", ["last", "axis"], ["y"]),
        ]
        whole = model(nodes, feeds, ["y"], constants)
    kind = "AUGRU" if scored else "GRU"
    return Subgraph(name, kind, whole, feeds, *_unrolled(weights, feeds, steps, hidden, scored))


def _unrolled(weights: Arrays, feeds: Arrays, steps: int, hidden: int, scored: bool) -> tuple[onnx.ModelProto, Arrays]:
    """The cell of the Scan's body, repeated for each step."""
    rows = len(feeds["x"])
    given: Arrays = {f"x{t}": np.ascontiguousarray(feeds["x"][:, t]) for t in range(steps)}
    given |= {f"a{t}": np.ascontiguousarray(feeds["a"][:, t]) for t in range(steps) if scored}
    given["h0"] = np.zeros((rows, hidden), np.float32)
    nodes = []
    for t in range(steps):
        for op, reads, writes, attributes in (
            ("Concat", ["x", "h"], ["xh"], {"axis": 1}),
            ("Gemm", ["xh", "gates.weight", "gates.bias"], ["sum"], {}),
            ("Sigmoid", ["sum"], ["gates"], {}),
            ("Split", ["gates"], ["r", "u"], {"axis": 1}),
            ("Mul", ["r", "h"], ["rh"], {}),
            ("Concat", ["x", "rh"], ["xrh"], {"axis": 1}),
            ("Gemm", ["xrh", "candidate.weight", "candidate.bias"], ["csum"], {}),
            ("Tanh", ["csum"], ["c"], {}),
            *((("Sub", ["one", "a"], ["rest"], {}), ("Mul", ["rest", "u"], ["update"], {})) if scored else ()),
            ("Mul", ["update" if scored else "u", "h"], ["kept"], {}),
            ("Sub", ["one", "update" if scored else "u"], ["share"], {}),
            ("Mul", ["share", "c"], ["new"], {}),
            ("Add", ["kept", "new"], ["h+"], {}),
        ):
            names = [n if n in weights else f"{n}{t}" for n in reads]
            made = [f"h{t + 1}" if n == "h+" else f"{n}{t}" for n in writes]
            nodes.append(helper.make_node(op, names, made, **attributes))
    return model(nodes, given, [f"h{steps}"], weights), given


def cheap(rows: int, columns: int, width: int) -> Subgraph:
    """Independent short chains, one for each column of a model."""
    feeds: Arrays = {f"x{i}": drawn(rows, width) for i in range(columns)}
    constants: Arrays = {f"b{i}": drawn(width) for i in range(columns)}
    nodes = []
    for i in range(columns):
        nodes.append(helper.make_node("Add", [f"x{i}", f"b{i}"], [f"s{i}"]))
        nodes.append(helper.make_node("Relu", [f"s{i}"], [f"y{i}"]))
    outputs = [f"y{i}" for i in range(columns)]
    return Subgraph(f"{columns} chains of ({rows}, {width})", "packing", model(nodes, feeds, outputs, constants), feeds)


SUBGRAPHS = (
    one_hot_sum(4096, 4, 50, 100),
    one_hot_sum(512, 4, 50, 100),
    one_hot_sum(512, 4, 50, 100, 16),
    concat_sum(4096, 13, 100),
    concat_sum(512, 13, 100),
    concat_sum(512, 26, 1, 16),
    recurrent(512, 50, 8, 8, False),
    recurrent(512, 50, 36, 36, False),
    recurrent(32, 50, 8, 8, False),
    recurrent(512, 50, 8, 8, True),
    cheap(512, 26, 16),
    cheap(32, 26, 16),
)
