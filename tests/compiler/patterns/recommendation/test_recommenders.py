"""The zoo's recommendation models lowered: few layers, and equal to ONNX Runtime at any batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx_nets import Net, normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.zoo.registry import write

ROWS = 60


def feeds(path: Path, batch: int) -> dict[str, NDArray[Any]]:
    random = np.random.default_rng(batch)
    found = {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        shape = [dim.dim_value or batch for dim in value.type.tensor_type.shape.dim]
        floats = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        drawn = random.standard_normal(shape).astype(np.float32) if floats else random.integers(1, ROWS, shape)
        found[value.name] = drawn
    return found


def expected(path: Path, given: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    return list(ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, given))


@pytest.mark.parametrize(
    ("name", "precision", "worst", "kinds"),
    [
        ("ncf", "fp32", 1e-4, {"embedding_bag": 1, "stitched": 1}),
        ("deepfm", "bf16", 3e-2, {"stitched": 3}),  # a factorisation machine, a sum; norms went into the towers
    ],
)
def test_equal_to_onnx_runtime(tmp_path: Path, name: str, precision: str, worst: float, kinds: dict[str, int]) -> None:
    path = write(name, tmp_path / f"{name}.onnx", 3, rows=ROWS)[0]
    product = "matmul_bf16" if precision == "bf16" else "matmul"
    towers = sum(node.op_type == "Gemm" for node in onnx.load(path, load_external_data=False).graph.node)
    for batch in (1, 19):
        given = feeds(path, batch)
        outputs, layers = run(path, given, precision, batch, 32)
        for output, wanted in zip(outputs, expected(path, given), strict=True):
            assert np.abs(output - wanted).max() <= worst * np.abs(wanted).max()
        assert {kind: layers.count(kind) for kind in kinds} == kinds and layers.count(product) == towers


def test_products_in_bfloat16_from_a_tile_of_rows_on(tmp_path: Path) -> None:
    """The greatest batch decides, and a model of few rows keeps its activations."""
    net = Net(x=["n", 24])
    path = net.save(tmp_path / "m.onnx", net("Relu", net("Gemm", "x", normal(24, 40))))
    for most, kind in ((15, ["matmul"]), (16, ["cast", "matmul_bf16"])):
        assert [layer.op for layer in lower(load_model(path, most), "bf16").layers] == kind


def test_a_norm_read_by_others_stays(tmp_path: Path) -> None:
    net = Net(x=["n", 24])
    values = [[abs(normal(24)) + 0.5 for _ in range(4)] for _ in range(2)]
    alone = net("Gemm", net("BatchNormalization", "x", *values[0]), normal(24, 8), normal(8))
    shared = net("BatchNormalization", "x", *values[1])
    path = net.save(tmp_path / "m.onnx", alone, net("Sub", net("MatMul", shared, normal(24, 24)), shared))
    given = {"x": np.random.default_rng(0).standard_normal((3, 24), dtype=np.float32)}
    outputs, layers = run(path, given, "fp32", 3)
    for output, wanted in zip(outputs, expected(path, given), strict=True):
        np.testing.assert_allclose(output, wanted, rtol=1e-4, atol=1e-5)
    assert layers.count("matmul") == 2 and len(layers) == 4


@pytest.mark.parametrize(("precision", "worst"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_rows_side_by_side(tmp_path: Path, precision: str, worst: float) -> None:
    """Of any widths, sequences too, one of them twice; rounded where products alone read them."""
    net = Net(a=["n", 1], b=["n", 7], c=["n", 16], d=["n", 50], s=["n", 5, 9], t=["n", 5, 20])
    rows = net("Concat", "d", "a", net("Relu", "b"), "c", "d", axis=1)
    read = net("Gemm", net("Concat", "b", "c", "a", "d", axis=1), normal(74, 8))
    path = net.save(tmp_path / "m.onnx", rows, read, net("Concat", "s", "t", axis=2))
    random = np.random.default_rng(0)
    for batch in (1, 19):
        shapes = {"a": (1,), "b": (7,), "c": (16,), "d": (50,), "s": (5, 9), "t": (5, 20)}
        given = {name: random.standard_normal((batch, *shape), dtype=np.float32) for name, shape in shapes.items()}
        outputs, layers = run(path, given, precision, batch, 32)
        for output, wanted in zip(outputs, expected(path, given), strict=True):
            assert np.abs(output - wanted).max() <= worst * np.abs(wanted).max()
        np.testing.assert_array_equal(outputs[0][:, -50:], given["d"])
        assert layers.count("concat_rows") == 3


@pytest.mark.parametrize(("precision", "worst"), [("fp32", 1e-5), ("bf16", 3e-2)])
def test_cross_layers_are_dense_layers_with_gates(tmp_path: Path, precision: str, worst: float) -> None:
    """DCN-V2: first * (x @ V @ W + b) + x; in bfloat16 the stream is, too."""
    net, width = Net(x=["n", 50]), 50
    first = x = net("Concat", "x", axis=1)
    for _ in range(2):
        low = net("MatMul", x, normal(8, width).T.copy())
        factor = net("Add", net("MatMul", low, normal(width, 8).T.copy()), normal(width) + 0.2)
        x = net("Add", net("Mul", factor, first), x)
    gated = net("Mul", net("Gemm", x, normal(width, 7), normal(7)), net("Gemm", x, normal(width, 7), normal(7)))
    path = net.save(tmp_path / "m.onnx", net("Gemm", x, normal(width, 3)), gated)
    for batch in (1, 19):
        given = {"x": np.random.default_rng(batch).standard_normal((batch, width), dtype=np.float32)}
        outputs, layers = run(path, given, precision, batch, 32)
        for output, wanted in zip(outputs, expected(path, given), strict=True):
            assert np.abs(output - wanted).max() <= worst * np.abs(wanted).max()
        assert sum(layer.startswith("matmul") for layer in layers) == 7 and "stitched" not in layers
