"""Dimensions that a file leaves open: one is left to queries, the others are fixed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from open_dimensions import constant, model, node, plan_bounds, weight
from run_kernels import run_graph

from veltair.compiler.build import compile_model
from veltair.compiler.onnx.dimensions.given_dimensions import MOST_EXTENT, GivenDimensions
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.verify import verify
from veltair.errors import ConfigError, ModelError

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def images(tmp_path: Path, *dims: int | str | None) -> Path:
    """Images of any size: a convolution, and the mean of each channel."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("GlobalAveragePool", ["r"], ["p"]),
        node("Flatten", ["p"], ["y"]),
    ]
    proto = model(nodes, [("x", FLOAT, ["n", 3, *dims])], [("y", FLOAT, ["n", 8])], [weight("w", 8, 3, 3, 3)])
    return saved(proto, tmp_path)


def saved(proto: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "open.onnx"
    onnx.save(proto, str(path))
    return path


def agrees(path: Path, given: GivenDimensions, *shape: int) -> None:
    """At that shape of its input the model gives what ONNX Runtime gives for the file as it is."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    graph = lower(load_model(path, 4, given=given), "fp32")
    (wanted,) = ort.InferenceSession(str(path)).run(None, {"x": x})
    (found,) = run_graph(graph, {"x": x}, len(x))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_extents_are_fixed(tmp_path: Path) -> None:
    path = images(tmp_path, "height", "width")
    agrees(path, GivenDimensions.of({"height": 12, "width": 20}, "dims"), 2, 3, 12, 20)


def test_the_batch_is_a_dimension_as_well(tmp_path: Path) -> None:
    path, given = images(tmp_path, 9, "width"), GivenDimensions.of({"n": 2, "width": 7}, "dims")
    assert load_model(path, given=given).inputs[0].shape == (2, 3, 9, 7)
    agrees(path, given, 2, 3, 9, 7)


def test_without_a_name_it_is_called_by_its_place(tmp_path: Path) -> None:
    path = images(tmp_path, None, None)
    with pytest.raises(ModelError, match=r"dimension 2 is symbolic \(x:2\).*--dim x:2=EXTENT.*--dim x:2=LOW\.\.HIGH"):
        load_model(path)
    agrees(path, GivenDimensions.of({"x:2": 8, "x:3": 9}, "dims"), 1, 3, 8, 9)
    agrees(path, GivenDimensions.of({"x:2,x:3": 8}, "dims"), 1, 3, 8, 8)


def test_negative_extents_are_open_as_onnx_runtime_has_them(tmp_path: Path) -> None:
    path = images(tmp_path, -1, -4)
    with pytest.raises(ModelError, match=r"dimension 2 is symbolic \(x:2\)"):
        load_model(path)
    agrees(path, GivenDimensions.of({"x:2": 8, "x:3": 9}, "dims"), 1, 3, 8, 9)


def test_a_negative_batch_is_open(tmp_path: Path) -> None:
    path = saved(model([node("Relu", ["x"], ["y"])], [("x", FLOAT, [-1, 3])], [("y", FLOAT, [-1, 3])], []), tmp_path)
    agrees(path, GivenDimensions(), 3, 3)


def test_extents_of_what_is_longer_by_a_number(tmp_path: Path) -> None:
    nodes = [node("Concat", ["past", "x"], ["all"], axis=1), node("Mul", ["all", "mask"], ["y"])]
    sides = ("past", ["n", "past"]), ("x", ["n", 1]), ("mask", ["n", "past + 1"])
    inputs, outputs = [(name, FLOAT, dims) for name, dims in sides], [("y", FLOAT, ["n", "past + 1"])]
    path = saved(model(nodes, inputs, outputs, []), tmp_path)
    found = load_model(path, given=GivenDimensions.of({"past": 5}, "dims"))
    assert [port.shape for port in (*found.inputs, *found.outputs)] == [(-1, 5), (-1, 1), (-1, 6), (-1, 6)]


def test_several_names_of_one_dimension(tmp_path: Path) -> None:
    """As tf2onnx writes them: every axis of every input has a name of its own."""
    nodes = [
        node("Gather", ["words", "ids"], ["h"]),
        node("Unsqueeze", ["mask", "end"], ["column"]),
        node("Mul", ["h", "column"], ["y"]),
    ]
    inputs: Any = [("ids", INT64, ["unk_1", "unk_2"]), ("mask", FLOAT, ["unk_3", "unk_4"])]
    constants = [weight("words", 11, 4), constant("end", np.array([-1]))]
    path = saved(model(nodes, inputs, [("y", FLOAT, ["unk_5", "unk_6", 4])], constants), tmp_path)
    given = GivenDimensions.parse(["unk_2,unk_4=1..9"], "--dim")
    artifact = compile_model(path, tmp_path / "artifact", trials=0, levels="modelled", dimensions=given)
    assert artifact.manifest.given == given.texts == ("unk_2,unk_4=1..9",)
    dimension = artifact.manifest.dimension
    assert dimension is not None and dict(dimension.axes) == {"ids": (1,), "mask": (1,), "y": (1,)}
    assert not verify(artifact, path).mismatches
    with pytest.raises(ModelError, match=r"dimension 1 is symbolic \(unk_4\)"):
        plan_bounds(path, "unk_2", 1, 9)


def test_fixed_beside_one_that_queries_choose(tmp_path: Path) -> None:
    given = GivenDimensions.of({"height": 6, "width": (2, 12)}, "dims")
    path = images(tmp_path, "height", "width")
    artifact = compile_model(path, tmp_path / "artifact", trials=0, levels="modelled", dimensions=given)
    assert artifact.manifest.client_inputs[0].shape == (-1, 3, 6, 12)
    assert not verify(artifact, path).mismatches


def test_verified_as_it_was_compiled(tmp_path: Path) -> None:
    path, given = images(tmp_path, "height", "width"), GivenDimensions.of({"height": 6, "width": 8}, "dims")
    artifact = compile_model(path, tmp_path / "artifact", trials=0, levels="modelled", dimensions=given)
    assert not verify(artifact, path).mismatches


@pytest.mark.parametrize("text", ["seq", "=3", "=1..2", "seq=", "seq=a..b", "seq=1..", "seq=..2", "seq=-1", "seq=1..²"])
def test_texts_that_say_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected NAME=EXTENT or NAME=LOW\.\.HIGH"):
        GivenDimensions.parse([text], "--dim")


@pytest.mark.parametrize(
    "value",
    [0, -4, MOST_EXTENT + 1, (0, 4), (4, 4), (5, 4), (1, MOST_EXTENT + 1), 2.5, "8", None, (1,), (1, 2, 3), (1, 2.5)],
)
def test_extents_out_of_bounds(value: Any) -> None:
    with pytest.raises(ConfigError, match="the first is below the second, from 1 to 1048576"):
        GivenDimensions.of({"seq": value}, "dims")


@pytest.mark.parametrize("texts", [["a=1", "a=2"], ["a=1", "a=1..2"], ["a,b=1", "b=2"], ["a,a=1"]])
def test_given_twice(texts: list[str]) -> None:
    with pytest.raises(ConfigError, match="is given twice"):
        GivenDimensions.parse(texts, "--dim")


def test_bounds_of_one_dimension_alone() -> None:
    with pytest.raises(ConfigError, match="bounds of one dimension and extents of all others, found a, b"):
        GivenDimensions.parse(["a=1..2", "b=1..2", "c=3"], "--dim")


@pytest.mark.parametrize("names", ["a,", ",a", "a,,b"])
def test_names_that_are_missing(names: str) -> None:
    with pytest.raises(ConfigError, match="expected the name of a dimension"):
        GivenDimensions.parse([f"{names}=2"], "--dim")


def test_a_dimension_that_is_not_there(tmp_path: Path) -> None:
    path = images(tmp_path, "height", None)
    with pytest.raises(
        ModelError, match=r"no input has a dimension 'width'; symbolic dimensions: 'n', 'height', 'x:3'"
    ):
        load_model(path, given=GivenDimensions.of({"height": 4, "width": 4}, "dims"))
