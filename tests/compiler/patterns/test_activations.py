"""GELU in all its spellings is one epilogue; what only looks like it is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx_nets import Net, normal, run

BETA, CUBIC = np.float32(0.7978845608), np.float32(0.044715)
ONE, HALF, ROOT = np.float32(1), np.float32(0.5), np.float32(2**0.5)
Spelling = Callable[[Net, str], str]


def by_erf(net: Net, x: str) -> str:
    return net("Mul", net("Mul", x, net("Add", net("Erf", net("Div", x, ROOT)), ONE)), HALF)


def by_erf_half_first(net: Net, x: str) -> str:
    half = net("Mul", HALF, x)
    return net("Mul", net("Add", ONE, net("Erf", net("Mul", x, np.float32(2**-0.5)))), half)


def by_tanh_and_power(net: Net, x: str) -> str:
    half = net("Mul", x, HALF)
    inner = net("Add", x, net("Mul", net("Pow", x, np.float32(3)), CUBIC))
    return net("Mul", half, net("Add", net("Tanh", net("Mul", inner, BETA)), ONE))


def by_tanh_and_products(net: Net, x: str) -> str:
    cube = net("Mul", net("Mul", x, x), x)
    inner = net("Mul", BETA, net("Add", x, net("Mul", CUBIC, cube)))
    return net("Mul", net("Mul", x, net("Add", ONE, net("Tanh", inner))), HALF)


def another_cubic(net: Net, x: str) -> str:
    inner = net("Add", x, net("Mul", net("Pow", x, np.float32(3)), np.float32(0.05)))
    return net("Mul", net("Mul", x, HALF), net("Add", net("Tanh", net("Mul", inner, BETA)), ONE))


def read_between(net: Net, x: str) -> str:
    scaled = net("Div", x, ROOT)
    return net("Add", net("Mul", net("Mul", x, net("Add", net("Erf", scaled), ONE)), HALF), scaled)


@pytest.mark.parametrize(
    ("spelling", "layers"),
    [
        (by_erf, ["matmul"]),
        (by_erf_half_first, ["matmul"]),
        (by_tanh_and_power, ["matmul"]),
        (by_tanh_and_products, ["matmul"]),
        (another_cubic, ["matmul", "stitched"]),
        (read_between, ["matmul", "stitched"]),
    ],
)
def test_gelu_behind_a_dense_layer(tmp_path: Path, spelling: Spelling, layers: list[str]) -> None:
    net = Net(x=[7, 20])
    model = net.save(tmp_path / "net.onnx", spelling(net, net("Gemm", "x", normal(20, 33), normal(33))))
    feeds = {"x": normal(7, 20) * 12}
    (found,), operators = run(model, feeds, "fp32")
    (wanted,) = ort.InferenceSession(str(model)).run(None, feeds)
    assert operators == layers
    assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()
