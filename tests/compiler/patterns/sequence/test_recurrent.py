"""Gated recurrent units: GRU and Scan nodes become one layer, equal to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx_nets import Arrays, run, saved

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError
from veltair.zoo.recommendation.augru import augru

FLOAT = TensorProto.FLOAT
random = np.random.default_rng(11)


def drawn(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def matches(path: Path, feeds: Arrays, batch: int = 1) -> list[str]:
    """The operators of a model that gives what ONNX Runtime gives."""
    outputs, operators = run(path, feeds, "fp32", batch, max_batch=32)
    expected = ort.InferenceSession(str(path)).run(None, feeds)
    for found, wanted in zip(outputs, expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)
    return operators


def gru_constants(inputs: int, hidden: int) -> dict[str, NDArray[Any]]:
    return {
        "w": drawn(1, 3 * hidden, inputs),
        "r": drawn(1, 3 * hidden, hidden) / 3,
        "b": drawn(1, 6 * hidden),
        "first": np.array([0]),
        "second": np.array([1]),
    }


@pytest.mark.parametrize("after", [0, 1])
def test_gru_takes_in_the_transposes_around_it(tmp_path: Path, after: int) -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("GRU", ["t", "w", "r", "b"], ["y"], hidden_size=4, linear_before_reset=after),
        helper.make_node("Squeeze", ["y", "second"], ["s"]),
        helper.make_node("Transpose", ["s"], ["z"], perm=[1, 0, 2]),
    ]
    path = saved(tmp_path / "gru.onnx", nodes, {"x": ["n", 7, 5]}, ("z",), gru_constants(5, 4))
    assert matches(path, {"x": drawn(3, 7, 5)}, 3) == ["recurrent"]


def test_gru_with_lengths_and_initial_state(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("GRU", ["x", "w", "r", "", "lengths", "h"], ["y", "last"], hidden_size=4),
        helper.make_node("Squeeze", ["last", "first"], ["z"]),
    ]
    inputs = {"x": [7, 3, 5], "lengths": [3], "h": [1, 3, 4]}
    path = saved(tmp_path / "gru.onnx", nodes, inputs, ("y", "z"), gru_constants(5, 4))
    feeds = {"x": drawn(7, 3, 5), "h": drawn(1, 3, 4), "lengths": np.array([1, 7, 4], np.int32)}
    assert matches(path, feeds) == ["recurrent"]


def test_augru_of_the_zoo(tmp_path: Path) -> None:
    made = augru("u", "x", "a", 5, 4, random)
    constants = {t.name: numpy_helper.to_array(t) for t in made.initializers}
    inputs = {"x": ["n", 7, 5], "a": ["n", 7, 1]}
    path = saved(tmp_path / "augru.onnx", list(made.nodes), inputs, (made.states, made.last), constants)
    assert matches(path, {"x": drawn(3, 7, 5), "a": random.random((3, 7, 1), dtype=np.float32)}, 3) == ["recurrent"]


# Bodies of a Scan from (h, x, a) to its new state "n": the same cell as others write it.
SEPARATE = [
    ("MatMul", "x wr", "1"),
    ("MatMul", "h rr", "2"),
    ("Sum", "1 2 b", "3"),
    ("Sigmoid", "3", "r"),
    ("MatMul", "x wu", "4"),
    ("Gemm", "h ru b", "5"),
    ("Add", "4 5", "6"),
    ("Sigmoid", "6", "u"),
]
BODIES = {
    "one minus u": [
        *SEPARATE,
        ("MatMul", "x wc", "7"),
        ("Mul", "r h", "8"),
        ("MatMul", "8 rc", "9"),
        ("Add", "7 9", "10"),
        ("Tanh", "10", "c"),
        ("Sub", "c h", "11"),
        ("Mul", "u 11", "12"),
        ("Add", "12 h", "n"),
    ],
    "reset after": [
        *SEPARATE,
        ("MatMul", "x wc", "7"),
        ("Gemm", "h rc b", "8"),
        ("Mul", "8 r", "9"),
        ("Add", "7 9", "10"),
        ("Tanh", "10", "c"),
        ("Mul", "u a", "11"),
        ("Sub", "u 11", "12"),
        ("Mul", "12 h", "13"),
        ("Mul", "12 c", "14"),
        ("Sub", "c 14", "15"),
        ("Add", "13 15", "n"),
    ],
}
REFUSED = {
    "not u h": [*SEPARATE, ("Mul", "u h", "7"), ("Tanh", "7", "c"), ("Add", "c r", "n")],
    "Erf": [("Erf", "h", "n")],
    "outside": [("Add", "h other", "n")],
}


def scan(path: Path, steps: list[tuple[str, str, str]], hidden: int = 4) -> Path:
    inputs = 5
    weights = {f"w{gate}": drawn(inputs, hidden) for gate in "ruc"}
    weights |= {f"r{gate}": drawn(hidden, hidden) * 2 / np.float32(np.sqrt(hidden)) for gate in "ruc"}
    constants = [numpy_helper.from_array(array, name) for name, array in ({"b": drawn(hidden)} | weights).items()]
    widths = {"h": hidden, "x": inputs, "a": 1}
    given = [helper.make_tensor_value_info(n, FLOAT, [None, width]) for n, width in widths.items()]
    made = [helper.make_tensor_value_info(n, FLOAT, [None, hidden]) for n in ("n", "m")]
    nodes = [helper.make_node(op, reads.split(), [name]) for op, reads, name in (*steps, ("Identity", "n", "m"))]
    body = helper.make_graph(nodes, "body", given, made, constants)
    node = helper.make_node("Scan", ["start", "X", "A"], ["last", "Y"], name="s", body=body, num_scan_inputs=2)
    add = helper.make_node("Relu", ["P"], ["start"])
    other = helper.make_node("Relu", ["start"], ["other"])
    inputs_ = {"P": [3, hidden], "X": [7, 3, inputs], "A": [7, 3, 1]}
    return saved(path, [add, other, node], inputs_, ("Y", "last", "other"), {})


@pytest.mark.parametrize(("hidden", "op"), [(4, "recurrent"), (70, "projected_recurrent")])
@pytest.mark.parametrize("name", BODIES)
def test_a_scan_is_known_by_what_it_computes(tmp_path: Path, name: str, hidden: int, op: str) -> None:
    feeds = {"P": drawn(3, hidden), "X": drawn(7, 3, 5), "A": random.random((7, 3, 1), dtype=np.float32)}
    assert op in matches(scan(tmp_path / "scan.onnx", BODIES[name], hidden), feeds)


@pytest.mark.parametrize("name", REFUSED)
def test_other_scans_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match=f"'s': Scan is not supported: .* gated recurrent unit, but .*{name}"):
        lower(load_model(scan(tmp_path / "scan.onnx", REFUSED[name])), "fp32", fallback=False)
