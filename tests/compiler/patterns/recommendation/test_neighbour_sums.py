"""Sums over neighbours of a graph that is constant: from ONNX to one layer, equal to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError

random = np.random.default_rng(6)
NODES, OTHERS, EDGES, DIM = 30, 20, 150, 24


def layers(path: Path) -> list[str]:
    """The layers of a model whose outputs are ONNX Runtime's."""
    feeds = {"x": normal(NODES, DIM)}
    (found, *_), operators = run(path, feeds, "fp32")
    wanted = ort.InferenceSession(str(path)).run(None, feeds)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    return operators


def neighbour_net(
    *,
    weighted: bool = True,
    operator: str = "ScatterND",
    reduction: str = "add",
    start: float = 0,
    wide: bool = False,
    source: int | None = None,
    batch: bool = False,
) -> tuple[Net, str]:
    """Relu, and then the sums of its rows: OTHERS rows of them. source: the last edge's."""
    net = Net(x=["n" if batch else NODES, DIM])
    sources = random.integers(-NODES, NODES, EDGES)
    targets = random.integers(-OTHERS, OTHERS, (EDGES, 1))
    sources[-1] = source if source is not None else sources[-1]
    messages = net("Gather", net("Relu", "x"), sources, axis=0)
    if weighted:
        messages = net("Mul", normal(EDGES, DIM) if wide else normal(EDGES, 1), messages)
    indices = targets if operator == "ScatterND" else np.repeat(targets, DIM, 1)
    more = {} if operator == "ScatterND" else {"axis": 0}
    zeros = np.full((OTHERS, DIM), start, np.float32)
    return net, net(operator, zeros, indices, messages, reduction=reduction, **more)


@pytest.mark.parametrize("operator", ["ScatterND", "ScatterElements"])
@pytest.mark.parametrize("weighted", [True, False])
def test_each_is_one_layer(tmp_path: Path, operator: str, weighted: bool) -> None:
    net, y = neighbour_net(operator=operator, weighted=weighted)
    assert [op for op in layers(net.save(tmp_path / "net.onnx", y)) if op == "spmm"] == ["spmm"]


def test_what_is_no_sum_of_neighbours_is_left_to_others(tmp_path: Path) -> None:
    """A sum that begins with ones, a maximum, and messages with a weight for each number."""
    others = {"start": 1.0}, {"reduction": "max"}, {"wide": True}
    for number, options in enumerate(others):
        net, y = neighbour_net(**options)  # type: ignore[arg-type]
        path = net.save(tmp_path / f"{number}.onnx", y)
        assert "spmm" not in [layer.op for layer in lower(load_model(path), "fp32").layers]


def test_messages_that_are_an_output_exist(tmp_path: Path) -> None:
    net, y = neighbour_net()
    path = net.save(tmp_path / "net.onnx", y, "Mul2")
    assert "spmm" not in [layer.op for layer in lower(load_model(path), "fp32").layers]


@pytest.mark.parametrize("source", [NODES, -NODES - 1, 1 << 40])
def test_an_edge_from_no_node_is_refused(tmp_path: Path, source: int) -> None:
    net, y = neighbour_net(source=source)
    with pytest.raises(ModelError, match=rf"has the index {source}, and axis 0 of its input has {NODES} entries"):
        lower(load_model(net.save(tmp_path / "net.onnx", y)), "fp32", fallback=False)
