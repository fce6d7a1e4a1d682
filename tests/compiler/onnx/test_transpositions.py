"""Transpositions in several nodes become one, which gives what they gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx_protos import model, port, run
from onnx_protos import node as unnamed

from veltair.compiler.onnx.folding.transpositions import simplify_transpositions
from veltair.compiler.onnx.onnx_model import load_model
from veltair.types import TensorSpec

SHAPES = {"x": (2, 3, 4, 5), "merged": (6, 4, 5), "turned": (6, 5, 4), "y": (2, 3, 5, 4)}


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    made = unnamed(op, inputs, output, **attributes)
    made.name = output
    return made


def simplified(nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], *outputs: str) -> list[str]:
    """The operators of the nodes that the outputs need."""
    values = {name: TensorSpec(name, "float32", shape) for name, shape in shapes.items()}
    found = simplify_transpositions(nodes, values, set(outputs), {})
    makers = {name: each for each in found for name in each.output}
    wanted, kept = list(outputs), []
    while wanted:
        if (maker := makers.get(wanted.pop())) is not None:
            kept.append(maker.op_type)
            wanted.append(maker.input[0])
    return kept


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(4)), st.permutations([1, 2]), st.booleans())
def test_they_give_what_they_gave(first: list[int], tail: list[int], same: bool) -> None:
    """Transpose, then the last axes turned with the first two merged, then a reshape that may change nothing."""
    x = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(SHAPES["x"])
    begin = x.transpose(first)
    merged = begin.reshape(-1, *begin.shape[2:])
    turned = merged.transpose(0, *tail)
    last = (*begin.shape[:2], *turned.shape[1:])
    constants = {"two": merged.shape, "four": last, "out": last if same else (-1, last[-1])}
    nodes = [
        node("Transpose", "x", "begin", perm=first),
        node("Reshape", "begin two", "merged"),
        node("Transpose", "merged", "turned", perm=[0, *tail]),
        node("Reshape", "turned four", "last"),
        node("Reshape", "last out", "z"),
        node("Neg", "z", "y"),
    ]
    tensors = [numpy_helper.from_array(np.array(shape), name) for name, shape in constants.items()]
    whole = model(nodes, [port("x", list(x.shape))], [port("y", None)], tensors)
    [wanted] = run(whole, {"x": x})
    shapes = {"x": x.shape, "begin": begin.shape, "merged": merged.shape, "turned": turned.shape, "last": last}
    shapes |= {"z": wanted.shape, "y": wanted.shape} | {name: (len(shape),) for name, shape in constants.items()}
    turns = [*first[:2], *(first[1 + axis] for axis in tail)] != [0, 1, 2, 3]
    assert simplified(nodes, shapes, "y") == ["Neg", *([] if same else ["Reshape"]), *(["Transpose"] if turns else [])]
    values = {name: TensorSpec(name, "float32", shape) for name, shape in shapes.items()}
    left = simplify_transpositions(nodes, values, {"y"}, {})
    fewer = model(left, [port("x", list(x.shape))], [port("y", None)], tensors)
    np.testing.assert_array_equal(run(fewer, {"x": x})[0], wanted)


def test_what_the_model_gives_out_and_what_splits_otherwise_stays() -> None:
    steps = [
        node("Reshape", "x two", "merged"),
        node("Transpose", "merged", "turned", perm=[0, 2, 1]),
        node("Reshape", "turned four", "y"),
    ]
    assert simplified(steps, SHAPES, "y") == ["Transpose"]
    assert simplified(steps, SHAPES | {"y": (3, 2, 5, 4)}, "y") == ["Reshape", "Transpose", "Reshape"]
    same = [node("Reshape", "x four", "y")]
    assert simplified(same, {"x": (2, 3), "y": (2, 3)}, "y") == ["Reshape"]


@pytest.mark.parametrize(
    ("op", "constants", "kept"),
    [
        ("Slice", {"starts": [0], "ends": [16], "axes": [1]}, False),  # GhostNet's: the first 16 of 16 channels
        ("Slice", {"starts": [0, 0], "ends": [2**31 - 1, 99], "axes": [0, -3], "steps": [1, 1]}, False),
        ("Slice", {"starts": [-1], "ends": [-99], "axes": [1], "steps": [-1]}, True),  # the other way round
        ("Slice", {"starts": [0], "ends": [15], "axes": [1]}, True),
        ("Slice", {"starts": [-99], "ends": [99], "axes": [0]}, True),  # the batch may be greater
        ("Expand", {"shape": [1, 16, 1, 1]}, False),
        ("Expand", {"shape": [2, 1, 16, 2, 2]}, True),
        ("Tile", {"repeats": [1, 1, 1, 1]}, False),
        ("Tile", {"repeats": [1, 1, 2, 1]}, True),
        ("Pad", {"pads": [0, 1, 0, 0, 0, -1, 0, 0]}, True),  # the same shape, but not the same
    ],
)
def test_what_changes_nothing_is_left_out(op: str, constants: dict[str, list[int]], kept: bool, tmp_path: Path) -> None:
    arrays = {name: np.array(value, np.int64) for name, value in constants.items()}
    nodes = [node("Neg", "x", "a"), node(op, " ".join(["a", *arrays]), "b"), node("Abs", "b", "y")]
    tensors = [numpy_helper.from_array(value, name) for name, value in arrays.items()]
    onnx.save(model(nodes, [port("x", ["batch", 16, 2, 2])], [port("y", None)], tensors), tmp_path / "m.onnx")
    loaded = load_model(tmp_path / "m.onnx", max_batch=32)
    assert (op in {each.op_type for each in loaded.nodes}) == kept
