"""Floats that are rounded to steps and read as floats stay floats, in the kernels around them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from compiled_models import Told, records
from numpy.typing import NDArray
from onnx import TensorProto, helper
from quantised_models import save
from run_kernels import run_graph

from veltair.compiler.build import compile_model
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import LOWERING_PHASES, Lowering
from veltair.compiler.references.quantised_reference import quantised_tolerance, without_jumps

node = helper.make_node
NUMBERS: dict[str, NDArray[Any]] = {
    "s": np.array(0.05, np.float32),
    "z": np.array(120, np.uint8),
    "t": np.array(0.01, np.float32),
    "n": np.array(-10, np.int8),
    "w": np.random.default_rng(0).integers(-90, 90, (40, 24)).astype(np.int8),
    "ws": np.array(0.01, np.float32),
    "wz": np.array(0, np.int8),
}


def rounded(name: str, *quantum: str) -> list[Any]:
    """`name` as steps, `name`q, and as floats again, `name`d."""
    return [
        node("QuantizeLinear", [name, *quantum], [f"{name}q"]),
        node("DequantizeLinear", [f"{name}q", *quantum], [f"{name}d"]),
    ]


def lowered(path: Path) -> LayerGraph:
    lowering = Lowering(precision="fp32")
    lowering.model = load_model(path, 4)
    for phase in LOWERING_PHASES:
        phase(lowering)
    return lowering.graph


def agrees(path: Path, graph: LayerGraph, x: NDArray[np.float32]) -> None:
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    found = run_graph(graph, {"x": x}, len(x))
    for a, b in zip(found, wanted, strict=True):
        assert np.abs(without_jumps(a, b) - b).max() <= 1e-5 * np.abs(b).max()


@pytest.mark.parametrize("batch", [1, 3])
def test_roundings_between_floats_join_the_kernels_around_them(tmp_path: Path, batch: int) -> None:
    nodes = [
        *rounded("x", "s", "z"),
        node("Erf", ["xd"], ["e"]),
        *rounded("e", "t", "n"),
        node("Softmax", ["ed"], ["p"], axis=-1),
        *rounded("p", "t", "n"),
        node("Add", ["pd", "ed"], ["y"]),
    ]
    constants = {name: NUMBERS[name] for name in ("s", "z", "t", "n")}
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 5, 40], ["n", 5, 40])
    graph = lowered(path)
    assert {layer.op for layer in graph.layers} == {"stitched"}
    x = 4 * np.random.default_rng(batch).standard_normal((batch, 5, 40)).astype(np.float32)
    x[0, 0, :2] = -np.inf, np.inf
    agrees(path, graph, x)
    assert quantised_tolerance(graph.layers) > 0


@pytest.mark.parametrize("second", ["s", "t"])
def test_a_view_that_is_rounded_once_more(tmp_path: Path, second: str) -> None:
    """The second rounding reads the floats of the first, and nobody the steps between: no layer makes these."""
    nodes = [
        *rounded("x", "s", "z"),
        node("Flatten", ["xd"], ["e"], axis=1),  # of rows: no operator
        *rounded("e", second, "z"),
        node("Tanh", ["ed"], ["y"]),
    ]
    path = save(
        tmp_path / "net.onnx", nodes, {name: NUMBERS[name] for name in {"s", "z", second}}, ["n", 40], ["n", 40]
    )
    graph = lowered(path)
    assert {layer.op for layer in graph.layers} == {"stitched"}
    agrees(path, graph, np.random.default_rng(4).standard_normal((3, 40)).astype(np.float32))


def test_a_view_of_steps_that_generated_code_makes(tmp_path: Path) -> None:
    """Steps that are cut and viewed anew, with roundings between by one scale, stay the same steps."""
    nodes = [
        *rounded("x", "s", "z"),
        node("Concat", ["xd", "xd"], ["c"], axis=3),
        *rounded("c", "s", "z"),
        node("Slice", ["cd", "from", "to", "along"], ["p"]),
        *rounded("p", "s", "z"),
        node("Reshape", ["pd", "rows"], ["v"]),
        *rounded("v", "s", "z"),
        node("Tanh", ["vd"], ["y"]),
    ]
    numbers = {"from": np.array([1]), "to": np.array([3]), "along": np.array([2]), "rows": np.array([0, -1])}
    constants = {**{name: NUMBERS[name] for name in ("s", "z")}, **numbers}
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 2, 4, 5], ["n", 40])
    agrees(path, lowered(path), np.random.default_rng(5).standard_normal((3, 2, 4, 5)).astype(np.float32))


def test_products_read_the_steps_and_floats_their_values(tmp_path: Path) -> None:
    nodes = [
        *rounded("x", "s", "z"),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node("MatMul", ["xd", "wd"], ["m"]),
        node("Tanh", ["xd"], ["e"]),
        node("ReduceSum", ["e", "axes"], ["r"]),
        node("Sub", ["m", "r"], ["y"]),
    ]
    constants = {name: NUMBERS[name] for name in ("s", "z", "w", "ws", "wz")} | {"axes": np.array([-1])}
    path = save(tmp_path / "net.onnx", nodes, constants, ["n", 40], ["n", 24])
    graph = lowered(path)
    ops = [layer.op for layer in graph.layers]
    assert "matmul_int8" in ops and "quantise" in ops and "dequantise" not in ops
    agrees(path, graph, np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32))


def test_an_output_of_steps_and_one_of_their_floats_stay(tmp_path: Path) -> None:
    nodes = [*rounded("x", "s", "z"), node("Tanh", ["xd"], ["y"])]
    model = save(tmp_path / "net.onnx", nodes, {name: NUMBERS[name] for name in ("s", "z")}, ["n", 9], ["n", 9])
    proto = onnx.load(model)
    proto.graph.output.append(helper.make_tensor_value_info("xq", TensorProto.UINT8, ["n", 9]))
    proto.graph.output.append(helper.make_tensor_value_info("xd", TensorProto.FLOAT, ["n", 9]))
    onnx.save(proto, model)
    graph = lowered(model)
    assert [port.name for port in graph.outputs] == ["y", "xq", "xd"]
    agrees(model, graph, np.random.default_rng(3).standard_normal((2, 9)).astype(np.float32))


def test_steps_in_the_middle_of_two_others_may_become_either(tmp_path: Path, told: Told) -> None:
    """One in ten steps below zero is in the middle of two steps once it is a tenth of itself."""
    nodes = [*rounded("x", "s", "z"), node("LeakyRelu", ["xd"], ["e"], alpha=0.1), *rounded("e", "s", "z")]
    nodes.append(node("Sin", ["ed"], ["y"]))
    model = save(tmp_path / "net.onnx", nodes, {name: NUMBERS[name] for name in ("s", "z")}, ["n", 300], ["n", 300])
    compile_model(model, tmp_path / "out", trials=0, precision="fp32", max_batch=2, store=records(tmp_path))
    code, output, _ = told("verify", tmp_path / "out", model, "--json")
    assert code == 0, json.loads(output)["mismatches"]
