"""Nodes that compute with the batch itself are left to ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx_protos import I64, F, model, node, port, run, saved
from run_kernels import run_graph

import veltair
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.onnx.folding.opaque_nodes import is_opaque
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError

CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "v0": np.array([0]),
    "row": np.arange(3, dtype=np.float32),
}
BATCH = [node("Shape", "x", "shape"), node("Gather", "shape zero", "n", axis=0)]
NODES = {
    "a share of each sample": [node("Cast", "n", "f", to=F), node("Div", "x f", "d")],
    "the last sample": [node("Sub", "n one", "at"), node("Gather", "x at", "d", axis=0)],
    "the first samples of many, as in TimeSformer": [
        node("Concat", "x x", "twice", axis=0),
        node("Unsqueeze", "n v0", "end"),
        node("Slice", "twice v0 end v0", "d"),
    ],
}


def assert_agrees(graph: LayerGraph, proto: onnx.ModelProto, batches: Sequence[int]) -> None:
    """With ONNX Runtime, at each of the batches."""
    for batch in batches:
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 3, 4)).astype(np.float32)}
        for ours, theirs in zip(run_graph(graph, feeds, batch), run(proto, feeds), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("nodes", NODES.values(), ids=NODES)
def test_a_node_is_left_to_onnx_runtime(tmp_path: Path, nodes: list[onnx.NodeProto]) -> None:
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    every = [*BATCH, *nodes, node("Softplus", "x", "p"), node("Add", "d p", "y")]
    for each in every:
        each.name = each.output[0]
    proto = model(every, [port("x", ["n", 3, 4])], [port("y", None)], constants)
    path = saved(tmp_path, proto)
    with pytest.raises(ModelError, match="which is computed from the batch"):
        load_model(path, fallback=False)
    loaded = load_model(path)
    assert not loaded.mergeable  # rows of different samples may mix
    [joined] = [n for n in loaded.nodes if is_opaque(n)]
    assert "which is computed from the batch" in joined.doc_string
    graph = lower(loaded, "fp32")
    assert sum(layer.op == "onnxruntime" for layer in graph.layers) == 1
    assert_agrees(graph, proto, (1, 3))


# Outputs that follow from the batch alone, and their shapes.
OUTPUTS: dict[str, tuple[list[onnx.NodeProto], list[int | str], int]] = {
    "batch": ([node("Identity", "n", "batch")], [], I64),
    "extents": ([node("Identity", "shape", "extents")], [3], I64),
    "share": ([node("Cast", "n", "f", to=F), node("Reciprocal", "f", "share")], [], F),
    "columns": (
        [node("Shape", "x", "s", end=2), node("Expand", "row s", "e"), node("Transpose", "e", "columns", perm=[1, 0])],
        [3, "n"],
        F,
    ),
    "square": (
        [
            node("Unsqueeze", "n v0", "b"),
            node("Concat", "b b", "bb", axis=0),
            node("ConstantOfShape", "bb", "zeros"),
            node("EyeLike", "zeros", "square"),
        ],
        ["n", "n"],
        F,
    ),
    "angles": (
        [node("Range", "zero n one", "r"), node("Cast", "r", "turns", to=F), node("Sin", "turns", "angles")],
        ["n"],
        F,
    ),
}


def test_outputs_follow_from_the_batch_alone(tmp_path: Path) -> None:
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    nodes = [*BATCH, *(each for made, _, _ in OUTPUTS.values() for each in made), node("Softplus", "x", "p")]
    for each in nodes:
        each.name = each.output[0]
    outputs = [port(name, shape, kind) for name, (_, shape, kind) in OUTPUTS.items()]
    proto = model(nodes, [port("x", ["n", 3, 4])], [*outputs, port("p", ["n", 3, 4])], constants)
    path = saved(tmp_path, proto)
    artifact = veltair.compile(path, tmp_path / "artifact", trials=0, levels="model", max_batch=3)
    assert not artifact.manifest.mergeable
    with veltair.load(artifact) as served:
        for batch in (1, 3):
            x = np.random.default_rng(batch).standard_normal((batch, 3, 4)).astype(np.float32)
            found = served(x)
            for name, expected in zip((*OUTPUTS, "p"), run(proto, {"x": x}), strict=True):
                assert found[name].shape == expected.shape, name
                np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


STEPS = {
    "at most two": [node("Min", "n two", "m"), node("Cast", "m", "f", to=F), node("Div", "x f", "d")],
    "more than one": [node("Greater", "n one", "g"), node("Where", "g two one", "w"), node("Cast", "w", "f", to=F)],
    "in pairs": [node("Div", "n two", "m"), node("Min", "m two", "w"), node("Cast", "w", "f", to=F)],
}


@pytest.mark.parametrize("nodes", STEPS.values(), ids=STEPS)
def test_a_number_that_is_alike_at_most_batches(tmp_path: Path, nodes: list[onnx.NodeProto]) -> None:
    """At the sample sizes of the batch it is; one sample was divided by two."""
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    behind = [node("Softplus", "x", "p"), node("Sub", "p f", "y")]
    every = [*BATCH, *nodes, *behind]
    for each in every:
        each.name = each.output[0]
    proto = model(every, [port("x", ["n", 3, 4])], [port("y", None)], constants)
    path = saved(tmp_path, proto)
    with pytest.raises(ModelError, match="is another one for small or large batches"):
        load_model(path, fallback=False)
    graph = lower(load_model(path, 5), "fp32")
    assert_agrees(graph, proto, (1, 2, 5))


def test_a_guard_that_changes_nothing(tmp_path: Path) -> None:
    """As exporters write it around the size that a tensor is expanded to."""
    guard = [node("Equal", "n one", "is"), node("Where", "is one n", "w"), node("Unsqueeze", "w v0", "to")]
    behind = [node("Concat", "to v3 v4", "size", axis=0), node("Expand", "row size", "e"), node("Add", "x e", "y")]
    every = [*BATCH, *guard, *behind]
    for each in every:
        each.name = each.output[0]
    more = {"v3": np.array([3]), "v4": np.array([4]), "row": np.ones((1, 3, 4), np.float32)}
    constants = [numpy_helper.from_array(value, name) for name, value in (CONSTANTS | more).items()]
    proto = model(every, [port("x", ["n", 3, 4])], [port("y", None)], constants)
    loaded = load_model(saved(tmp_path, proto), 4, fallback=False)
    assert [each.op_type for each in loaded.nodes] == ["Add"]
