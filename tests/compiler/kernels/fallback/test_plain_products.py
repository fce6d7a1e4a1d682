"""Products that no kernel takes are left to ONNX Runtime where plain loops would take long, and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from quantised_models import save

import veltair
from veltair.compiler.kernels.fallback.plain_products import why_not_plain
from veltair.profiles.artifact.manifest import ONNX_LAYER
from veltair.types import TensorSpec


def test_a_product_of_doubles(tmp_path: Path) -> None:
    rng, kind = np.random.default_rng(0), TensorProto.DOUBLE
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], "product"), helper.make_node("Tanh", ["p"], ["y"])]
    weight = rng.standard_normal((700, 500))
    path = save(tmp_path / "net.onnx", nodes, {"w": weight}, (kind, ["n", 700]), (kind, ["n", 500]))
    x = rng.standard_normal((3, 700)) / 26
    artifact = veltair.compile(path, tmp_path / "out", trials=0)
    left = [layer for layer in artifact.manifest.layers if layer.op == ONNX_LAYER]
    assert [layer.note for layer in left] == ["ONNX Runtime: no kernel for MatMul ('product') of float64, float64"]
    with veltair.load(artifact) as model:
        np.testing.assert_allclose(model({"x": x})["y"], ort.InferenceSession(str(path)).run(None, {"x": x})[0])


def why(node: onnx.NodeProto, *shapes: tuple[int, ...]) -> str:
    names = [*node.input, *node.output]
    return why_not_plain(node, {n: TensorSpec(n, "float64", s) for n, s in zip(names, shapes, strict=True)})


@pytest.mark.parametrize(
    ("node", "small", "large"),
    [
        (
            helper.make_node("MatMul", ["a", "b"], ["y"]),
            [(-1, 16), (16, 16), (-1, 16)],
            [(-1, 700), (700, 500), (-1, 500)],
        ),
        (
            helper.make_node("Gemm", ["a", "b"], ["y"], transA=1),
            [(700, 3), (700, 9), (3, 9)],
            [(700, 30), (700, 50), (30, 50)],
        ),
        (
            helper.make_node("Conv", ["a", "b"], ["y"]),
            [(-1, 3, 6, 6), (4, 3, 3, 3), (-1, 4, 4, 4)],
            [(-1, 64, 16, 16), (64, 64, 3, 3), (-1, 64, 14, 14)],
        ),
        (
            helper.make_node("ConvTranspose", ["a", "b"], ["y"]),
            [(-1, 3, 6, 6), (3, 4, 2, 2), (-1, 4, 12, 12)],
            [(-1, 64, 16, 16), (64, 64, 2, 2), (-1, 64, 32, 32)],
        ),
        (
            helper.make_node("Einsum", ["a", "b"], ["y"], equation="nii, ni -> n"),
            [(-1, 9, 9), (-1, 9), (-1,)],
            [(-1, 900000, 900000), (-1, 900000), (-1,)],
        ),
    ],
)
def test_only_what_takes_long(node: onnx.NodeProto, small: list[tuple[int, ...]], large: list[tuple[int, ...]]) -> None:
    assert why(node, *small) == ""
    assert why(node, *large) == f"no kernel for {node.op_type} ('') of float64, float64"


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Add", ["a", "b"], ["y"]),
        helper.make_node("Einsum", ["a", "b"], ["y"], equation="ij,jk->ijk"),  # as many as there are results
    ],
)
def test_other_nodes_are_no_products(node: onnx.NodeProto) -> None:
    assert why(node, (2000, 2000), (2000, 2000), (2000, 2000)) == ""


def test_few_steps_for_each_result_are_no_long_product() -> None:
    assert why(helper.make_node("MatMul", ["a", "b"], ["y"]), (2000, 3), (3, 2000), (2000, 2000)) == ""
