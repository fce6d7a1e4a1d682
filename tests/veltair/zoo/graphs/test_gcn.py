"""The graph convolutional network of the zoo: its file, its layers and its answers, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.zoo.graphs import gcn
from veltair.zoo.graphs.gcn import GcnShape, draw_edges
from veltair.zoo.registry import ZOO

SMALL = GcnShape(nodes=300, edges=2000, features=32, hidden=48, classes=10)


def test_it_is_the_networks_equation(tmp_path: Path) -> None:
    proto, outside = gcn.build(3, SMALL)
    onnx.checker.check_model(proto, full_check=True)
    path = tmp_path / "gcn.onnx"
    onnx.save(proto, path)
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    edges = draw_edges(SMALL, np.random.default_rng(3))
    adjacency = np.zeros((SMALL.nodes, SMALL.nodes))
    np.add.at(adjacency, (edges.targets, edges.sources), 1)
    assert not outside and (adjacency.diagonal() >= 1).all() and adjacency.sum() == SMALL.edges + SMALL.nodes
    roots = np.sqrt(adjacency.sum(1))
    normalised = adjacency / roots[:, None] / roots
    x = np.random.default_rng(0).standard_normal((SMALL.nodes, SMALL.features), np.float32)
    h = np.maximum(normalised @ (x @ held["layer_0.weight"]) + held["layer_0.bias"], 0)
    wanted = normalised @ (h @ held["logits.weight"]) + held["logits.bias"]
    (found,) = ort.InferenceSession(str(path)).run(None, {"features": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_each_convolution_is_a_product_and_a_sparse_product(tmp_path: Path) -> None:
    path = tmp_path / "gcn.onnx"
    onnx.save(gcn.build(3, SMALL)[0], path)
    found = [layer.op for layer in lower(load_model(path), "fp32").layers]
    assert found == ["matmul", "spmm", "stitched"] * 2


def test_the_shipped_one_is_of_ogbn_arxivs_size() -> None:
    shape = ZOO["gcn"].definition
    assert isinstance(shape, GcnShape) and (shape.nodes, shape.edges) == (169_343, 1_166_243)
    assert (shape.features, shape.classes) == (128, 40) and ZOO["gcn"].parameters == shape.parameters == 21_672
    of_products = shape.features * shape.hidden + shape.hidden * shape.classes
    assert ZOO["gcn"].gflops == round(2 * shape.nodes * of_products / 1e9, 3)
