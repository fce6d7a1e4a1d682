"""Files that compute in floats of 16 bits: every operator is a layer of ours, and clients see the types of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import veltair
from veltair.compiler.onnx.half_floats import has_half_floats
from veltair.compiler.onnx.onnx_model import load_model

HALF, WIDE = TensorProto.FLOAT16, TensorProto.FLOAT
node = helper.make_node
rng = np.random.default_rng(4)


def half(*shape: int) -> NDArray[np.float16]:
    return (rng.standard_normal(shape) * 0.3).astype(np.float16)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, int],
    constants: dict[str, NDArray[Any]],
    **options: Any,
) -> Path:
    graph = helper.make_graph(
        nodes,
        "halves",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path, **options)
    return path


def agrees(path: Path, folder: Path, feeds: dict[str, NDArray[Any]], *, tolerance: float = 5e-3) -> set[str]:
    """Compile and run it beside ONNX Runtime; the operations of its layers."""
    artifact = veltair.compile(path, folder, trials=0, precision="fp32", max_batch=4, levels="model")
    wanted = ort.InferenceSession(str(path)).run(None, feeds)
    with veltair.load(artifact) as run:
        found = run(feeds)
    for port, right in zip(onnx.load(path, load_external_data=False).graph.output, wanted, strict=True):
        assert found[port.name].dtype == right.dtype and found[port.name].shape == right.shape
        error = np.abs(found[port.name].astype(float) - right.astype(float)).max()
        assert error <= tolerance * np.abs(right.astype(float)).max()
    return {layer.op for layer in artifact.layers}


@pytest.mark.parametrize("ports", [HALF, WIDE])
def test_moves_and_products_are_layers(tmp_path: Path, ports: int) -> None:
    """As converters write files, with floats of 32 bits at the ends or without."""
    nodes = [
        node("Cast", ["x"], ["h"], to=HALF),
        node("MatMul", ["h", "w"], ["m"]),
        node("Reshape", ["m", "heads"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[0, 2, 1, 3]),
        node("Softmax", ["t"], ["s"], axis=-1),
        node("Slice", ["s", "from", "to", "along"], ["c"]),
        node("Add", ["c", "b"], ["a"]),
        node("Cast", ["a"], ["y"], to=ports),
    ]
    constants = {
        "w": half(12, 24),
        "b": half(1, 1, 1, 6),
        "heads": np.array([0, 5, 4, 6]),
        "from": np.array([1]),
        "to": np.array([4]),
        "along": np.array([2]),
    }
    path = save(tmp_path / "net.onnx", nodes, {"x": (ports, ["n", 5, 12])}, {"y": ports}, constants)
    x = rng.standard_normal((3, 5, 12)).astype(np.float16 if ports == HALF else np.float32)
    assert "onnxruntime" not in agrees(path, tmp_path / "out", {"x": x})


@pytest.mark.parametrize("tied", [False, True])
def test_tables_stay_as_they_are_stored(tmp_path: Path, tied: bool) -> None:
    """Unless something else reads them too."""
    nodes = [node("Gather", ["table", "ids"], ["rows"]), node("ReduceSum", ["rows", "axes"], ["bag"], keepdims=0)]
    nodes.append(node("Gemm", ["bag", "table" if tied else "w"], ["y"], transB=1))
    constants = {"table": half(500, 16), "axes": np.array([1])} | ({} if tied else {"w": half(500, 16)})
    path = save(tmp_path / "net.onnx", nodes, {"ids": (TensorProto.INT64, ["n", 7])}, {"y": HALF}, constants)
    model = load_model(path, 4)
    kinds = {array.dtype for array in model.initializers.values() if array.shape[0] == 500 and array.ndim == 2}
    assert (np.dtype(np.float16) in kinds) != tied
    assert "onnxruntime" not in agrees(path, tmp_path / "out", {"ids": rng.integers(0, 500, (3, 7))})


def test_branches_constants_and_what_is_passed_on(tmp_path: Path) -> None:
    """Graphs inside of nodes, constants of any spelling, an output that is an input or a constant, external data."""
    value = numpy_helper.from_array(np.array([2.5], np.float16), "value")
    turn = helper.make_graph(
        [node("Add", ["carried", "step"], ["next"]), node("Identity", ["go"], ["still"])],
        "turn",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", HALF, None),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", HALF, None),
        ],
    )
    nodes = [
        node("Constant", [], ["two"], value=value),
        node("ConstantOfShape", ["extent"], ["step"], value=value),
        node("Mul", ["x", "two"], ["doubled"]),
        node("Loop", ["trips", "", "doubled"], ["last"], body=turn),
        node("Identity", ["x"], ["same"]),
    ]
    constants = {"extent": np.array([6]), "trips": np.array(3), "kept": half(1 << 20), "unread": half(700)}
    outputs = {"last": HALF, "same": HALF, "kept": HALF}
    path = save(
        *(tmp_path / "net.onnx", nodes, {"x": (HALF, ["n", 6])}, outputs, constants),
        save_as_external_data=True,
        location="net.data",
        size_threshold=1000,
    )
    agrees(path, tmp_path / "out", {"x": half(2, 6)})


def test_a_file_whose_ports_alone_are_halves(tmp_path: Path) -> None:
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), node("Softmax", ["t"], ["y"])]
    path = save(tmp_path / "net.onnx", nodes, {"x": (HALF, ["n", 5, 6])}, {"y": HALF}, {})
    assert "onnxruntime" not in agrees(path, tmp_path / "out", {"x": half(3, 5, 6)})


def test_numbers_of_other_types_leave_as_halves(tmp_path: Path) -> None:
    nodes = [
        node("Greater", ["x", "b"], ["more"]),
        node("Cast", ["more"], ["flags"], to=HALF),
        node("ArgMax", ["x"], ["place"], axis=1),
        node("Cast", ["place"], ["places"], to=HALF),
    ]
    ports = {"flags": HALF, "places": HALF}
    path = save(tmp_path / "net.onnx", nodes, {"x": (HALF, ["n", 9])}, ports, {"b": half(9)})
    assert "onnxruntime" not in agrees(path, tmp_path / "out", {"x": half(3, 9)}, tolerance=0)


@pytest.mark.parametrize("middles", [False, True])
def test_weights_in_blocks_with_scales_of_halves(tmp_path: Path, middles: bool) -> None:
    """As language models are published, in 4 bits."""
    rows, columns, block = 64, 24, 32
    constants: dict[str, NDArray[Any]] = {
        "w": rng.integers(0, 256, (columns, rows // block, block // 2)).astype(np.uint8),
        "s": rng.uniform(0.01, 0.1, (columns, rows // block)).astype(np.float16),
    } | ({"z": rng.integers(0, 256, (columns, 1)).astype(np.uint8)} if middles else {})
    sizes = {"K": rows, "N": columns, "bits": 4, "block_size": block}
    product = node("MatMulNBits", ["x", *constants], ["m"], domain="com.microsoft", **sizes)
    path = save(
        tmp_path / "net.onnx", [product, node("Tanh", ["m"], ["y"])], {"x": (HALF, ["n", rows])}, {"y": HALF}, constants
    )
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, path)
    assert agrees(path, tmp_path / "out", {"x": half(3, rows)}, tolerance=1e-2) <= {
        "matmul",
        "generic",
        "stitched",
        "cast",
    }


def test_a_file_without_any_is_left_alone(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", [node("Relu", ["x"], ["y"])], {"x": (WIDE, ["n", 3])}, {"y": WIDE}, {})
    assert not has_half_floats(onnx.load(path)) and not load_model(path).halves
