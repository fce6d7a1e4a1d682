"""GRU, LSTM and RNN nodes in all their forms, equal to ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper
from onnx_nets import Arrays, run, saved

from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError
from veltair.machine.isa import cpu_features

GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
random = np.random.default_rng(17)


def drawn(*shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, dtype=np.float32)


def weights_of(kind: str, inputs: int, hidden: int, count: int, prefix: str = "") -> dict[str, NDArray[Any]]:
    rows = GATES[kind] * hidden
    return {
        f"{prefix}w": drawn(count, rows, inputs) / np.float32(np.sqrt(inputs)),
        f"{prefix}r": drawn(count, rows, hidden) / np.float32(np.sqrt(hidden)),
        f"{prefix}b": drawn(count, 2 * rows) / 2,
    }


def compare(path: Path, feeds: Arrays, expected: list[Any], batch: int = 1, max_batch: int = 32) -> list[str]:
    """The operators of a model that gives what is expected."""
    outputs, operators = run(path, feeds, "fp32", batch, max_batch)
    for found, wanted in zip(outputs, expected, strict=True):
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-6)
    return operators


def runtime(path: Path, feeds: Arrays) -> list[Any]:
    return list(ort.InferenceSession(str(path)).run(None, feeds))


@st.composite
def recurrences(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(GATES)))
    outputs = ("y", "last", "last_cell")[: 3 if kind == "LSTM" else 2]
    return {
        "kind": kind,
        "direction": draw(st.sampled_from(("forward", "reverse", "bidirectional"))),
        "sizes": [draw(st.integers(1, most)) for most in (6, 18, 20)],  # steps, rows, inputs
        "hidden": draw(st.integers(1, 40) | st.integers(64, 100)),
        "lengths": draw(st.booleans()),
        "initial": draw(st.booleans()),
        "biased": draw(st.booleans()),
        "after": draw(st.integers(0, 1)),
        "outputs": draw(st.sets(st.sampled_from(outputs), min_size=1)),
    }


@settings(max_examples=30, deadline=None)
@given(recurrences())
def test_recurrences_equal_onnx_runtime(case: dict[str, Any]) -> None:
    kind, (steps, rows, width), hidden = case["kind"], case["sizes"], case["hidden"]
    count = 2 if case["direction"] == "bidirectional" else 1
    shapes: dict[str, Any] = {"x": [steps, rows, width]}
    states = ("h", "c") if kind == "LSTM" else ("h",)
    if case["lengths"]:
        shapes["lengths"] = [rows]
    if case["initial"]:
        shapes |= {name: [count, rows, hidden] for name in states}
    reads = ["x", "w", "r", "b" if case["biased"] else "", *(n if n in shapes else "" for n in ("lengths", *states))]
    outputs = [name if name in case["outputs"] else "" for name in ("y", "last", "last_cell")[: 1 + len(states)]]
    attributes = {"linear_before_reset": case["after"]} if kind == "GRU" else {}
    node = helper.make_node(
        kind, reads, outputs, name="n", hidden_size=hidden, direction=case["direction"], **attributes
    )
    feeds: Arrays = {name: drawn(*shape) for name, shape in shapes.items()}
    if case["lengths"]:
        feeds["lengths"] = random.integers(0, steps + 1, rows).astype(np.int32)
    constants = weights_of(kind, width, hidden, count)
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder) / "net.onnx", [node], shapes, tuple(filter(None, outputs)), constants)
        wide = ["matmul", "projected_recurrent"]  # of many units
        assert compare(path, feeds, runtime(path, feeds)) == (wide if hidden >= 64 else ["recurrent"])


@pytest.mark.skipif(not cpu_features() & {"avx512_bf16", "amx_bf16"}, reason="needs AVX-512-bf16 or AMX")
@pytest.mark.parametrize(("batch", "after"), [(1, 0), (20, 1)])
@pytest.mark.parametrize("kind", sorted(GATES))
def test_many_units_multiply_in_bfloat16(tmp_path: Path, kind: str, batch: int, after: int) -> None:
    steps, width, hidden = 17, 33, 99
    attributes = {"linear_before_reset": after} if kind == "GRU" else {}
    node = helper.make_node(
        kind, ["x", "w", "r", "b"], ["y", "last"], hidden_size=hidden, direction="bidirectional", **attributes
    )
    path = saved(
        tmp_path / "net.onnx", [node], {"x": [steps, batch, width]}, ("y", "last"), weights_of(kind, width, hidden, 2)
    )
    feeds: Arrays = {"x": drawn(steps, batch, width)}
    outputs, operators = run(path, feeds, "bf16", batch, 32)
    assert operators[-1] == "projected_recurrent" and "matmul_bf16" in operators
    for found, wanted in zip(outputs, runtime(path, feeds), strict=True):
        np.testing.assert_allclose(found, wanted, atol=0.03)


@pytest.mark.parametrize("kind", sorted(GATES))
def test_layout_1_puts_the_rows_first(tmp_path: Path, kind: str) -> None:
    steps, rows, width, hidden = 5, 3, 4, 9
    constants = weights_of(kind, width, hidden, 2)
    states = ("h", "c") if kind == "LSTM" else ("h",)
    shapes: dict[str, Any] = {"x": [steps, rows, width], **{name: [2, rows, hidden] for name in states}}
    feeds: Arrays = {name: drawn(*shape) for name, shape in shapes.items()}
    outputs = ("y", "last", "last_cell")[: 1 + len(states)]

    def node(layout: int) -> onnx.NodeProto:
        given = ["x", "w", "r", "b", "", *states]
        return helper.make_node(kind, given, outputs, hidden_size=hidden, direction="bidirectional", layout=layout)

    # ONNX Runtime has layout 0 alone.
    y, *last = runtime(saved(tmp_path / "0.onnx", [node(0)], shapes, outputs, constants), feeds)
    turned = {name: np.ascontiguousarray(array.swapaxes(0, 1)) for name, array in feeds.items()}
    swapped = {name: list(array.shape) for name, array in turned.items()}
    path = saved(tmp_path / "1.onnx", [node(1)], swapped, outputs, constants)
    expected = [y.transpose(2, 0, 1, 3), *(state.swapaxes(0, 1) for state in last)]
    assert "recurrent" in compare(path, turned, expected)


def test_pytorch_spelling_of_two_layers(tmp_path: Path) -> None:
    """Batch-first, bidirectional, with zeros of the batch's size as the exporter expands them."""
    width, hidden, steps = 6, 10, 7
    constants = weights_of("LSTM", width, hidden, 2, "0") | weights_of("LSTM", 2 * hidden, hidden, 2, "1")
    constants |= {
        "four": np.array([4]),
        "hidden": np.array([hidden]),
        "zero": np.array([0]),
        **{f"at{i}": np.array([i]) for i in (2, 4)},
        "merged": np.array([0, 0, -1]),
        "minus": np.array(-1),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["four", "batch", "hidden"], ["sizes"], axis=0),
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("Transpose", ["x"], ["t0"], perm=[1, 0, 2]),
    ]
    for layer, (start, stop) in enumerate((("zero", "at2"), ("at2", "at4"))):
        state, sequence = f"state{layer}", f"t{layer}"
        nodes += [
            helper.make_node("Slice", ["zeros", start, stop, "zero"], [state]),
            helper.make_node(
                "LSTM",
                [sequence, *(f"{layer}{name}" for name in "wrb"), "", state, state],
                [f"y{layer}", f"h{layer}", f"c{layer}"],
                hidden_size=hidden,
                direction="bidirectional",
            ),
            helper.make_node("Transpose", [f"y{layer}"], [f"s{layer}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"s{layer}", "merged"], [f"t{layer + 1}"]),
        ]
    nodes += [
        helper.make_node("Transpose", ["t2"], ["all"], perm=[1, 0, 2]),
        helper.make_node("Gather", ["h1", "minus"], ["backward"]),
    ]
    path = saved(tmp_path / "net.onnx", nodes, {"x": ["n", steps, width]}, ("all", "backward"), constants)
    feeds = {"x": drawn(3, steps, width)}
    operators = compare(path, feeds, runtime(path, feeds), batch=3)
    assert operators[:2] == ["recurrent", "recurrent"]


@pytest.mark.parametrize("count", [1, 2])
def test_a_transpose_between_two_recurrences_belongs_to_one_of_them(tmp_path: Path, count: int) -> None:
    """The first could write its states with the rows first, and the second could read them so."""
    width, hidden, steps = 6, 10, 7
    constants = weights_of("GRU", width, hidden, count, "0") | weights_of("LSTM", count * hidden, hidden, 1, "1")
    constants["merged"] = np.array([0, 0, -1])
    direction = "bidirectional" if count == 2 else "forward"
    nodes = [
        helper.make_node("GRU", ["x", "0w", "0r", "0b"], ["y0"], hidden_size=hidden, direction=direction),
        helper.make_node("Transpose", ["y0"], ["turned"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["turned", "merged"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["steps"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["steps", "1w", "1r", "1b"], ["y1"], hidden_size=hidden),
    ]
    path = saved(tmp_path / "net.onnx", nodes, {"x": [steps, 3, width]}, ("y1",), constants)
    feeds = {"x": drawn(steps, 3, width)}
    assert compare(path, feeds, runtime(path, feeds)) == ["recurrent", "recurrent"]


def test_keras_spelling(tmp_path: Path) -> None:
    """tf2onnx: Transpose, LSTM without lengths, Y squeezed at the axis of directions, then back to the batch first."""
    constants = weights_of("LSTM", 5, 12, 1) | {"axis": np.array([1])}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["t", "w", "r", "b"], ["y"], hidden_size=12),
        helper.make_node("Squeeze", ["y", "axis"], ["s"]),
        helper.make_node("Transpose", ["s"], ["z"], perm=[1, 0, 2]),
    ]
    path = saved(tmp_path / "net.onnx", nodes, {"x": ["n", 6, 5]}, ("z",), constants)
    feeds = {"x": drawn(19, 6, 5)}
    assert compare(path, feeds, runtime(path, feeds), batch=19) == ["recurrent"]


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("GRU", {"activations": ["HardSigmoid", "Relu"], "activation_alpha": [0.3], "activation_beta": [0.4]}),
        ("LSTM", {"activations": ["HardSigmoid", "Tanh", "LeakyRelu"]}),
        ("RNN", {"activations": ["Elu"], "activation_alpha": [0.5]}),
        ("RNN", {"activations": ["Relu", "Relu"], "direction": "bidirectional"}),
    ],
)
def test_other_functions(tmp_path: Path, kind: str, attributes: dict[str, Any]) -> None:
    count = 2 if attributes.get("direction") == "bidirectional" else 1
    # ONNX Runtime takes alpha and beta of all functions, or fills in its defaults.
    node = helper.make_node(kind, ["x", "w", "r", "b"], ["y"], hidden_size=6, **attributes)
    path = saved(tmp_path / "net.onnx", [node], {"x": [4, 3, 5]}, ("y",), weights_of(kind, 5, 6, count))
    feeds = {"x": drawn(4, 3, 5)}
    assert compare(path, feeds, runtime(path, feeds)) == ["recurrent"]


@pytest.mark.parametrize("batch", [3, "n"])
def test_constant_initial_states(tmp_path: Path, batch: int | str) -> None:
    """Learned ones: expanded to a dynamic batch in one direction; in both, of a fixed batch."""
    count = 2 if batch == 3 else 1
    constants = weights_of("LSTM", 5, 18, count)
    constants |= {"h0": drawn(count, 1, 18), "c": drawn(count, 3, 18)}
    constants |= {"one": np.array([1]), "zero": np.array([0]), "hidden": np.array([18])}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Concat", ["one", "rows", "hidden"], ["sizes"], axis=0),
        helper.make_node("Expand", ["h0", "sizes"], ["h"]),
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        helper.make_node(
            "LSTM",
            ["t", "w", "r", "b", "", "h", "c" if count == 2 else "h"],
            ["y"],
            hidden_size=18,
            direction="bidirectional" if count == 2 else "forward",
        ),
        helper.make_node("Transpose", ["y"], ["z"], perm=[2, 0, 1, 3]),
    ]
    path = saved(tmp_path / "net.onnx", nodes, {"x": [batch, 4, 5]}, ("z",), constants)
    feeds = {"x": drawn(3, 4, 5)}
    operators = compare(path, feeds, runtime(path, feeds), batch=1 if batch == 3 else 3)
    assert operators == ["constant_rows", "constant_rows", "recurrent"]


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs", "reason"),
    [
        ("GRU", {"clip": 1.0}, [], "attribute clip=1 is not supported"),
        ("LSTM", {"input_forget": 1}, [], "attribute input_forget=1 is not supported"),
        ("RNN", {"activations": ["Softsign"]}, [], r"attribute activations=\['Softsign'\] is not supported"),
        ("LSTM", {}, ["", "", "", "p"], r"input P \(peepholes\) is not supported"),
    ],
)
def test_what_is_refused_is_named(
    tmp_path: Path, kind: str, attributes: dict[str, Any], inputs: list[str], reason: str
) -> None:
    node = helper.make_node(kind, ["x", "w", "r", "b", *inputs], ["y"], name="g", hidden_size=4, **attributes)
    constants = weights_of(kind, 5, 4, 1) | {"p": np.ones((1, 12), np.float32)}
    path = saved(tmp_path / "net.onnx", [node], {"x": [7, 3, 5]}, ("y",), constants)
    with pytest.raises(ModelError, match=f"node 'g': {kind}: {reason}"):
        lower(load_model(path), "fp32", fallback=False)
