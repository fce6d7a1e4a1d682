"""Cutting a run of nodes: which importer gets which nodes, in an order in which each finds what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from veltair.compiler.graph.layer_graph import ImportedLayers
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.kernels.fallback.fallback_import import FallbackImporter
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError
from veltair.types import TensorSpec


def own(
    nodes: Sequence[onnx.NodeProto],
    values: Any,
    constants: Any,
    inputs: Sequence[str],
    outputs: Sequence[str],
    max_batch: int,
    opset: int,
) -> ImportedLayers:
    """An importer of our own that takes Relu and refuses all else."""
    if bad := [node.name for node in nodes if node.op_type != "Relu"]:
        raise ModelError(f"cannot take {bad[0]}")
    tensors = [tuple(Activation(name, "float32", (2,)) for name in names) for names in (inputs, outputs)]
    return ImportedLayers((LayerSpec("+".join(node.name for node in nodes), "own", *tensors, {}, 0),), ())


@given(st.lists(st.tuples(st.sampled_from(["Relu", "Det", "Erf"]), st.integers(0, 9)), min_size=1, max_size=10))
def test_each_node_is_imported_once_where_its_inputs_are_made(drawn: list[tuple[str, int]]) -> None:
    nodes = [helper.make_node(op, [f"t{min(i, at)}"], [f"t{i + 1}"], name=f"n{i}") for i, (op, at) in enumerate(drawn)]
    values = {f"t{i}": TensorSpec(f"t{i}", "float32", (2,)) for i in range(len(nodes) + 1)}
    outputs = sorted(values.keys() - {name for node in nodes for name in node.input})  # of a model without dead nodes
    found = FallbackImporter(own, {"n0": "a pattern refuses it"})(nodes, values, {}, ["t0"], outputs, 1, 17)
    made, ours = {"t0"}, list[str]()
    for layer in found.layers:
        assert made.issuperset(tensor.name for tensor in layer.inputs)
        made.update(tensor.name for tensor in layer.outputs)
        ours += layer.name.split("+") if layer.op == "own" else []
    assert made.issuperset(outputs)
    assert sorted(ours) == sorted(node.name for node in nodes if node.op_type == "Relu" and node.name != "n0")
    assert {layer.op for layer in found.layers if layer.op != "own"} <= {"onnxruntime"}


def test_a_run_that_is_refused_as_a_whole_falls_back_whole() -> None:
    def never(nodes: Sequence[onnx.NodeProto], *rest: Any) -> ImportedLayers:
        if len(nodes) > 1:
            raise ModelError("not together")
        return own(nodes, *rest)

    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=f"n{i}") for i in range(2)]
    values = {f"t{i}": TensorSpec(f"t{i}", "float32", (2,)) for i in range(3)}
    [layer] = FallbackImporter(never, {})(nodes, values, {"c": np.zeros(2)}, ["t0"], ["t2"], 1, 17).layers
    assert layer.op == "onnxruntime" and layer.parameters.note == "ONNX Runtime: not together"


def test_a_refusal_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """TVM's importer prints what it refuses, where `compile --json` writes its result, and warns of what is left."""
    nodes = [helper.make_node("Relu", ["q"], ["r"]), helper.make_node("Attention", ["r", "q", "q"], ["y"], softcap=2.0)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 2, 4, 16)) for name in "qy"]
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), path)
    layers = lower(load_model(path), "fp32").layers
    assert [layer.op for layer in layers].count("onnxruntime") == 1
    assert capfd.readouterr() == ("", "")
