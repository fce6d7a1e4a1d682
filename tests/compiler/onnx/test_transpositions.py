"""Transpositions in several nodes become one, which gives what they gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from onnx_protos import model, port, run
from onnx_protos import node as unnamed

from veltair.compiler.onnx.folding.transpositions import simplify_transpositions
from veltair.types import TensorSpec

SHAPES = {"x": (2, 3, 4, 5), "merged": (6, 4, 5), "turned": (6, 5, 4), "y": (2, 3, 5, 4)}


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    made = unnamed(op, inputs, output, **attributes)
    made.name = output
    return made


def simplified(nodes: list[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], *outputs: str) -> list[str]:
    """The operators of the nodes that the outputs need."""
    values = {name: TensorSpec(name, "float32", shape) for name, shape in shapes.items()}
    found = simplify_transpositions(nodes, values, set(outputs))
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
    assert simplified(nodes, shapes, "y") == ["Neg", *([] if same else ["Reshape"]), "Transpose"]
    values = {name: TensorSpec(name, "float32", shape) for name, shape in shapes.items()}
    fewer = model(simplify_transpositions(nodes, values, {"y"}), [port("x", list(x.shape))], [port("y", None)], tensors)
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
