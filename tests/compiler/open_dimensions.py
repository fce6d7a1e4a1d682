"""Small models that leave a dimension open beside the batch, as exporters write them, and queries for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.dimension_plan import DimensionPlan, plan_dimension
from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
from veltair.profiles.artifact.dynamic_dimension import DynamicDimension

node = helper.make_node
VOCABULARY, HIDDEN, LONGEST = 13, 4, 9
PLACES = {"second": 1, "end": -1, "begin": -99, "none": 0, "large": 99}  # along an axis, in vectors of one number
LEVELS = {"least": np.finfo(np.float32).min, "infinite": -np.inf, "low": -1e4, "weak": -1, "unit": 1, "nothing": 0}
random = np.random.default_rng(61)
Feeds = dict[str, NDArray[Any]]


def constant(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return constant(name, (0.3 * random.standard_normal(shape)).astype(np.float32))


def model(nodes: list[onnx.NodeProto], inputs: Any, outputs: Any, constants: list[onnx.TensorProto]) -> onnx.ModelProto:
    ports = [[helper.make_tensor_value_info(*port) for port in side] for side in (inputs, outputs)]
    used = {name for each in nodes for name in each.input}
    graph = helper.make_graph(nodes, "open", *ports, [each for each in constants if each.name in used])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def text(mask: str = "mask", pool: str = "first") -> onnx.ModelProto:
    """Embeddings, position embeddings of a length that is computed, an attention, each token and one of them all.

    mask: "mask", "ignore" (true where a position does not count), or "" for none. pool: "first" or "mean".
    """
    nodes = [
        node("Gather", ["words", "ids"], ["embedded"]),
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Range", ["zero", "length", "one"], ["range"]),
        node("Gather", ["places", "range"], ["placed"]),
        node("Add", ["embedded", "placed"], ["h"]),
        node("Transpose", ["h"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["h", "keys"], ["scores"]),
        node("Unsqueeze", [mask or "ids", "second"], ["row"]),
        node("Cast", ["row"], ["put_out"], to=TensorProto.BOOL),
        node("Where", ["put_out", *(("scores", "least") if mask == "mask" else ("least", "scores"))], ["kept"]),
        node("Softmax", ["kept" if mask else "scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "h"], ["tokens"]),
        node("Gather", ["tokens", "zero"], ["pooled"], axis=1)
        if pool == "first"
        else node("ReduceMean", ["tokens"], ["pooled"], axes=[1], keepdims=0),
    ]
    if not mask:
        nodes = [each for each in nodes if each.op_type not in ("Unsqueeze", "Cast", "Where")]
    constants = [
        weight("words", VOCABULARY, HIDDEN),
        weight("places", LONGEST, HIDDEN),
        constant("zero", np.int64(0)),
        constant("one", np.int64(1)),
        constant("second", np.array([1], np.int64)),
        constant("least", np.array(np.finfo(np.float32).min)),
    ]
    inputs: list[tuple[str, int, list[Any]]] = [("ids", TensorProto.INT64, ["batch", "seq"])]
    if mask:
        inputs.append((mask, TensorProto.INT64 if mask == "mask" else TensorProto.BOOL, ["batch", "seq"]))
    outputs = [
        ("tokens", TensorProto.FLOAT, ["batch", "seq", HIDDEN]),
        ("pooled", TensorProto.FLOAT, ["batch", HIDDEN]),
    ]
    return model(nodes, inputs, outputs, constants)


LAST = node("Gather", ["tokens", "minus_one"], ["y"], axis=1)
CAUSAL = (node("LessOrEqual", ["column", "row"], ["seen"]),)


def causal_text(
    mask: Sequence[onnx.NodeProto] = CAUSAL,
    *,
    behind: Sequence[onnx.NodeProto] = (),
    pool: Sequence[onnx.NodeProto] = (),
    axis: int = -1,
    shape: Sequence[Any] = ("batch", "seq", HIDDEN),
) -> onnx.ModelProto:
    """Embeddings and an attention whose mask is computed from the length: from ids to y.

    mask: from "scores", "row" and "column", numbers of positions, to "seen", "kept" scores or "weights". behind: from
    weights and embeddings "h" to y. pool: from "tokens" to y.
    """
    made = {name for each in (*mask, *behind, *pool) for name in each.output}
    nodes = [
        node("Gather", ["words", "ids"], ["h"]),
        node("Transpose", ["h"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["h", "keys"], ["scores"]),
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"]),
        node("Reshape", ["length", "second"], ["lengths"]),
        node("Concat", ["lengths", "lengths"], ["square"], axis=0),
        node("Range", ["zero", "length", "one"], ["column"]),
        node("Unsqueeze", ["column", "second"], ["row"]),
        *mask,
    ]
    if not made & {"kept", "weights"}:
        nodes.append(node("Where", ["seen", "scores", "least"], ["kept"]))
    if "weights" not in made:
        nodes.append(node("Softmax", ["kept"], ["weights"], axis=axis))
    nodes += behind or [node("MatMul", ["weights", "h"], ["tokens" if pool else "y"])]
    constants = [
        weight("words", VOCABULARY, HIDDEN),
        *(constant(name, np.int64(value)) for name, value in {"zero": 0, "one": 1, "two": 2, "minus_one": -1}.items()),
        *(constant(name, np.array([value], np.int64)) for name, value in PLACES.items()),
        *(constant(name, np.float32(value)) for name, value in LEVELS.items()),
        constant("rare", np.int64(VOCABULARY + 1)),
        constant("scale", np.ones(HIDDEN, np.float32)),
        constant("shift", np.zeros(HIDDEN, np.float32)),
        weight("square_weight", HIDDEN, HIDDEN),
        weight("taps", HIDDEN, HIDDEN, 3),
        weight("w", 1, HIDDEN, HIDDEN),
        weight("r", 1, HIDDEN, HIDDEN),
    ]
    ports = [("ids", TensorProto.INT64, ["batch", "seq"])], [("y", TensorProto.FLOAT, list(shape))]
    return model([*nodes, *pool], *ports, constants)


def image() -> onnx.ModelProto:
    """A convolution whose stride halves the width, and an average over the image."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[1, 2]),
        node("Relu", ["c"], ["map"]),
        node("GlobalAveragePool", ["map"], ["mean"]),
        node("Flatten", ["mean"], ["flat"]),
    ]
    inputs = [("x", TensorProto.FLOAT, ["n", 2, 6, "width"])]
    outputs = [("map", TensorProto.FLOAT, ["n", 4, 6, "half"]), ("flat", TensorProto.FLOAT, ["n", 4])]
    return model(nodes, inputs, outputs, [weight("w", 4, 2, 3, 3)])


def decoder() -> onnx.ModelProto:
    """One more token beside those before it, whose keys are given; the mask is for all of them."""
    nodes = [
        node("Gather", ["words", "ids"], ["token"]),
        node("Concat", ["past", "token"], ["present"], axis=1),
        node("Transpose", ["present"], ["keys"], perm=[0, 2, 1]),
        node("MatMul", ["token", "keys"], ["scores"]),
        node("Unsqueeze", ["mask", "second"], ["row"]),
        node("Cast", ["row"], ["put_out"], to=TensorProto.BOOL),
        node("Where", ["put_out", "scores", "least"], ["kept"]),
        node("Softmax", ["kept"], ["weights"], axis=-1),
        node("MatMul", ["weights", "present"], ["next"]),
    ]
    constants = [
        weight("words", VOCABULARY, HIDDEN),
        constant("second", np.array([1], np.int64)),
        constant("least", np.array(np.finfo(np.float32).min)),
    ]
    inputs = [
        ("past", TensorProto.FLOAT, ["batch", "past", HIDDEN]),
        ("ids", TensorProto.INT64, ["batch", 1]),
        ("mask", TensorProto.INT64, ["batch", "past + 1"]),
    ]
    outputs = [
        ("next", TensorProto.FLOAT, ["batch", 1, HIDDEN]),
        ("present", TensorProto.FLOAT, ["batch", "past + 1", HIDDEN]),
    ]
    return model(nodes, inputs, outputs, constants)


MODELS = {
    "masked": text(),
    "mean": text(pool="mean"),
    "image": image(),
    "decoder": decoder(),
    "causal": causal_text(),
    "causal_last": causal_text(pool=[LAST], shape=("batch", HIDDEN)),
}


def dimension_of(name: str) -> str:
    return {"image": "width", "decoder": "past"}.get(name, "seq")


def query(name: str, extent: int, batch: int) -> Feeds:
    if name == "image":
        return {"x": random.standard_normal((batch, 2, 6, extent)).astype(np.float32)}
    if name == "decoder":
        return {
            "past": random.standard_normal((batch, extent, HIDDEN)).astype(np.float32),
            "ids": random.integers(0, VOCABULARY, (batch, 1)),
            "mask": np.concatenate([random.integers(0, 2, (batch, extent)), np.ones((batch, 1), np.int64)], axis=1),
        }
    if name.startswith("causal"):
        return {"ids": random.integers(0, VOCABULARY, (batch, extent))}
    mask = random.integers(0, 2, (batch, extent))
    mask[:, random.integers(extent)] = 1
    return {"ids": random.integers(0, VOCABULARY, (batch, extent)), "mask": mask}


class Reference:
    """ONNX Runtime on one of MODELS."""

    def __init__(self, name: str) -> None:
        self._session: Any = ort.InferenceSession(MODELS[name].SerializeToString())

    def check(self, feeds: Feeds, found: Any) -> None:
        names = [port.name for port in self._session.get_outputs()]
        for output, wanted in zip(names, self._session.run(names, feeds), strict=True):
            assert found[output].shape == wanted.shape
            np.testing.assert_allclose(found[output], wanted, rtol=1e-4, atol=1e-5)


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "open.onnx"
    onnx.save(proto, str(path))
    return path


def plan_bounds(path: Path, name: str, low: int, high: int) -> DimensionPlan:
    """The plan where queries choose the dimension."""
    return plan_dimension(path, GivenDimensions(bounds=(name, low, high)))


def check_padding(path: Path) -> DynamicDimension:
    """Whether causal text pads, and padded gives at each extent what it gives as it is. Returns how it is padded."""
    found = plan_bounds(path, "seq", 1, LONGEST).dimension
    assert (found.exact, found.reason) == (False, "")
    session, rng = ort.InferenceSession(str(path)), np.random.default_rng(3)
    for extent in range(1, LONGEST + 1):
        feeds = {"ids": rng.integers(0, VOCABULARY, (3, extent))}
        (wanted,) = session.run(None, feeds)
        (padded,) = session.run(None, found.bring_to_bucket(feeds, extent))
        np.testing.assert_allclose(found.first("y", padded, extent), wanted, rtol=1e-4, atol=1e-6)
    return found


def save_all(folder: Path) -> None:
    for name, proto in MODELS.items():
        onnx.save(proto, str(folder / f"{name}.onnx"))
