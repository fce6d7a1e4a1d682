"""Feature maps whose batch lies in another dimension than the first: no layer on blocks of channels takes these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx_nets import Net, agree, normal
from patterns.test_quantised import greatest_error, lowered
from quantised_models import quantise, save

C, H, W = 16, 6, 8
ORDERS = {"channels": [1, 0, 2, 3], "rows": [1, 2, 0, 3], "columns": [3, 1, 2, 0]}  # where the batch is
OPERATORS: dict[str, dict[str, Any]] = {
    "MaxPool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "AveragePool": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "GlobalAveragePool": {},
    "LRN": {"size": 3},
    "Conv": {"pads": [1, 1, 1, 1]},
    "depthwise": {"pads": [1, 1, 1, 1]},
}


WEIGHTED = ("Conv", "depthwise")
CASES = [(op, where) for op in OPERATORS for where in ORDERS if op not in WEIGHTED or where != "channels"]


@pytest.mark.parametrize(("op", "where"), CASES)
def test_an_operator_on_maps(tmp_path: Path, op: str, where: str) -> None:
    order = ORDERS[where]
    channels = (0, C, H, W)[order[1]]
    each = 1 if op == "depthwise" else channels
    weights = [normal(channels, each, 3, 3)] if op in WEIGHTED else []
    grouped = {"group": channels // each} if op in WEIGHTED else {}
    for batch in (1, 3):
        net = Net(x=["n", C, H, W])
        x = net("Transpose", "x", perm=order)
        y = net("Conv" if op == "depthwise" else op, x, *weights, **OPERATORS[op], **grouped)
        layers = agree(tmp_path, (net("Transpose", y, perm=np.argsort(order).tolist()),), net, "fp32", batch, C, H, W)
        assert set(layers) <= {"generic", "stitched", "transpose"}


@pytest.mark.parametrize("where", ORDERS)
def test_steps_of_maps(tmp_path: Path, where: str) -> None:
    """A quantised file: roundings around a pool, a sum and a concatenation of such maps."""
    node, order = helper.make_node, ORDERS[where]
    nodes = [
        node("Transpose", ["x"], ["t"], perm=order),
        node("MaxPool", ["t"], ["p"], **OPERATORS["MaxPool"]),
        node("Add", ["p", "t"], ["s"]),
        node("Concat", ["s", "p"], ["c"], axis=1),
        node("GlobalAveragePool", ["c"], ["m"]),
        node("Mul", ["c", "m"], ["g"]),
        node("Transpose", ["g"], ["y"], perm=np.argsort(order).tolist()),
    ]
    extents: list[Any] = ["n", C, H, W]
    joined = [2 * n if at == order[1] else n for at, n in enumerate(extents)] if order[1] else [None, *extents[1:]]
    path = save(tmp_path / "net.onnx", nodes, {}, extents, joined)
    for form in ("qdq", "qlinear"):
        quantised = quantise(path, form)
        graph = lowered(quantised)
        for batch in (1, 3):
            x = np.random.default_rng(batch).standard_normal((batch, C, H, W)).astype(np.float32)
            assert greatest_error(quantised, graph, {"x": x}, batch) < 0.03
