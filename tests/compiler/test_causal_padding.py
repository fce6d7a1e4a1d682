"""Which attentions without a mask among the inputs are proved to pad: causal ones, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto
from open_dimensions import HIDDEN, LAST, LONGEST, causal_text, check_padding, constant, model, node, plan_bounds, saved

from veltair.compiler.causal_zeros import CausalZeros
from veltair.compiler.onnx.dimensions.fixed_extent import FixedExtent
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.onnx.position_rules import Positions

FLOAT = TensorProto.FLOAT
AHEAD = [node("Add", ["row", "one"], ["next"]), node("LessOrEqual", ["column", "next"], ["seen"])]
PADDED: dict[str, onnx.ModelProto] = {
    "a condition": causal_text(),
    "a triangle that is added": causal_text(
        [
            node("Expand", ["least", "square"], ["all"]),
            node("Trilu", ["all", "one"], ["upper"], upper=1),
            node("Add", ["scores", "upper"], ["kept"]),
        ]
    ),
    "a triangle that is multiplied, and what is left far below": causal_text(
        [
            node("LessOrEqual", ["column", "row"], ["seen"]),
            node("Cast", ["seen"], ["f"], to=FLOAT),
            node("Mul", ["scores", "f"], ["a"]),
            node("Sub", ["unit", "f"], ["g"]),
            node("Mul", ["g", "low"], ["b"]),
            node("Add", ["a", "b"], ["kept"]),
        ]
    ),
    "a window": causal_text(
        [
            node("LessOrEqual", ["column", "row"], ["before"]),
            node("Sub", ["row", "two"], ["nearest"]),
            node("Greater", ["column", "nearest"], ["near"]),
            node("And", ["before", "near"], ["seen"]),
        ]
    ),
    "a bias by distance": causal_text(
        [
            node("LessOrEqual", ["column", "row"], ["seen"]),
            node("Cast", ["column"], ["f"], to=FLOAT),
            node("Add", ["scores", "f"], ["biased"]),
            node("Where", ["seen", "biased", "least"], ["kept"]),
        ]
    ),
    "no softmax": causal_text(
        [
            node("LessOrEqual", ["column", "row"], ["seen"]),
            node("Cast", ["seen"], ["f"], to=FLOAT),
            node("Mul", ["scores", "f"], ["weights"]),
        ]
    ),
    "rows without a score are zero": causal_text(
        behind=[
            node("IsNaN", ["weights"], ["no"]),
            node("Where", ["no", "nothing", "weights"], ["sure"]),
            node("MatMul", ["sure", "h"], ["y"]),
        ]
    ),
}
FLAT = ("batch", HIDDEN)
LASTS: dict[str, onnx.ModelProto] = {
    "from the end": causal_text(pool=[LAST], shape=FLAT),
    "an axis of one": causal_text(
        pool=[node("Slice", ["tokens", "end", "large", "second"], ["y"])], shape=["batch", 1, HIDDEN]
    ),
    "from the length": causal_text(
        pool=[node("Sub", ["length", "one"], ["at"]), node("Gather", ["tokens", "at"], ["y"], axis=1)], shape=FLAT
    ),
    "an axis counted from the end, and a product behind": causal_text(
        pool=[
            node("Gather", ["tokens", "end"], ["t"], axis=-2),
            node("Squeeze", ["t", "second"], ["s"]),
            node("MatMul", ["s", "square_weight"], ["y"]),
        ],
        shape=FLAT,
    ),
    "before and behind": causal_text(
        pool=[
            node("Slice", ["h", "end", "large", "second"], ["a"]),
            node("Slice", ["tokens", "end", "large", "second"], ["b"]),
            node("Add", ["a", "b"], ["c"]),
            node("Add", ["c", "tokens"], ["y"]),
        ]
    ),
}
SHOWS: dict[str, onnx.ModelProto] = {
    "all positions": causal_text([node("Identity", ["scores"], ["kept"])]),
    "one position ahead": causal_text(AHEAD),
    "positions behind": causal_text([node("GreaterOrEqual", ["column", "row"], ["seen"])]),
    "a beginning that sees all of itself": causal_text(
        [node("Max", ["row", "two"], ["until"]), node("LessOrEqual", ["column", "until"], ["seen"])]
    ),
    "a mask too weak": causal_text(
        [
            node("Expand", ["weak", "square"], ["all"]),
            node("Trilu", ["all", "one"], ["upper"], upper=1),
            node("Add", ["scores", "upper"], ["kept"]),
        ]
    ),
    "a token that sees all, which no sample has": causal_text(
        [
            node("LessOrEqual", ["column", "row"], ["before"]),
            node("Equal", ["ids", "rare"], ["special"]),
            node("Unsqueeze", ["special", "second"], ["of_row"]),
            node("Or", ["before", "of_row"], ["seen"]),
        ]
    ),
    "a softmax over the queries": causal_text(axis=1),
    "the keys' view": causal_text(
        behind=[node("Transpose", ["weights"], ["t"], perm=[0, 2, 1]), node("MatMul", ["t", "h"], ["y"])]
    ),
    "a mean": causal_text(pool=[node("ReduceMean", ["tokens"], ["y"], axes=[1])]),
    "a sum": causal_text(pool=[node("ReduceSum", ["tokens", "second"], ["y"])]),
    "turned around": causal_text(pool=[node("Slice", ["tokens", "end", "begin", "second", "end"], ["y"])]),
    "rolled": causal_text(
        pool=[
            node("Slice", ["tokens", "end", "large", "second"], ["a"]),
            node("Slice", ["tokens", "none", "end", "second"], ["b"]),
            node("Concat", ["a", "b"], ["y"], axis=1),
        ]
    ),
    "the last position but one": causal_text(
        pool=[node("Sub", ["length", "two"], ["at"]), node("Gather", ["tokens", "at"], ["y"], axis=1)], shape=FLAT
    ),
    "half of the positions": causal_text(
        pool=[node("Div", ["length", "two"], ["at"]), node("Gather", ["tokens", "at"], ["y"], axis=1)], shape=FLAT
    ),
    "the last position where batch and length have changed places": causal_text(
        pool=[node("Transpose", ["tokens"], ["t"], perm=[1, 0, 2]), node("Gather", ["t", "minus_one"], ["y"])],
        shape=FLAT,
    ),
    "the last position of an attention that sees all": causal_text(
        [node("Identity", ["scores"], ["kept"])], pool=[LAST], shape=FLAT
    ),
    "sums of what comes behind": causal_text(pool=[node("CumSum", ["tokens", "second"], ["y"], reverse=1)]),
    "a norm over positions": causal_text(
        pool=[
            node("Transpose", ["tokens"], ["t"], perm=[0, 2, 1]),
            node("InstanceNormalization", ["t", "scale", "shift"], ["n"]),
            node("Transpose", ["n"], ["y"], perm=[0, 2, 1]),
        ]
    ),
    "a convolution that looks both ways": causal_text(
        pool=[
            node("Transpose", ["tokens"], ["t"], perm=[0, 2, 1]),
            node("Conv", ["t", "taps"], ["c"], pads=[1, 1]),
            node("Transpose", ["c"], ["y"], perm=[0, 2, 1]),
        ]
    ),
    "a recurrence from behind": causal_text(
        pool=[
            node("Transpose", ["tokens"], ["t"], perm=[1, 0, 2]),
            node("RNN", ["t", "w", "r"], ["steps"], hidden_size=HIDDEN, direction="reverse"),
            node("Squeeze", ["steps", "second"], ["s"]),
            node("Transpose", ["s"], ["y"], perm=[1, 0, 2]),
        ]
    ),
}


@pytest.mark.parametrize("name", PADDED)
def test_a_causal_attention_pads(name: str, tmp_path: Path) -> None:
    assert check_padding(saved(PADDED[name], tmp_path)).masks == ()


@pytest.mark.parametrize("causal", [0, 1])
def test_an_attention_operator_pads_where_it_is_causal(causal: int, tmp_path: Path) -> None:
    heads = {"q_num_heads": 2, "kv_num_heads": 2, "is_causal": causal}
    nodes = [node("Gather", ["words", "ids"], ["h"]), node("Attention", ["h", "h", "h"], ["y"], **heads)]
    words = next(each for each in causal_text().graph.initializer if each.name == "words")
    ports = [("ids", TensorProto.INT64, ["batch", "seq"])], [("y", FLOAT, ["batch", "seq", HIDDEN])]
    proto = model(nodes, *ports, [words])
    proto.opset_import[0].version = 23
    proto.ir_version = 11
    assert plan_bounds(saved(proto, tmp_path), "seq", 1, LONGEST).dimension.exact == (not causal)


@pytest.mark.parametrize("name", LASTS)
def test_the_last_position_is_that_of_each_sample(name: str, tmp_path: Path) -> None:
    path = saved(LASTS[name], tmp_path)
    plan = plan_bounds(path, "seq", 1, LONGEST)
    assert not plan.dimension.exact and plan.dimension.last
    loaded = load_model(path, fixed=plan.fixed[0])
    assert loaded.mergeable and loaded.inputs[-1].shape == (-1,)
    assert not any(spec.shape[1:2] == (LONGEST,) for spec in loaded.outputs if "y" not in plan.dimension.axes)


@pytest.mark.parametrize("name", SHOWS)
def test_what_sees_padding_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    path = saved(SHOWS[name], tmp_path)
    ort.InferenceSession(str(path))  # a model that is none would be refused as well
    found = plan_bounds(path, "seq", 1, LONGEST).dimension
    assert found.exact and found.reason and found.extents == (LONGEST,)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_mask_beside_the_triangle(guarded: bool, tmp_path: Path) -> None:
    """Where the mask leaves out the first positions, their rows see nothing: NaN that is made zero is the same with
    padding, a mean of everything is not."""
    out = "infinite" if guarded else "least"
    masked = [
        node("Unsqueeze", ["mask", "second"], ["m"]),
        node("Cast", ["m"], ["given"], to=TensorProto.BOOL),
        node("LessOrEqual", ["column", "row"], ["before"]),
        node("And", ["before", "given"], ["seen"]),
        node("Where", ["seen", "scores", out], ["kept"]),
    ]
    guard = [node("IsNaN", ["weights"], ["no"]), node("Where", ["no", "nothing", "weights"], ["sure"])]
    proto = causal_text(masked, behind=[*guard, node("MatMul", ["sure", "h"], ["y"])])
    proto.graph.input.append(onnx.helper.make_tensor_value_info("mask", TensorProto.INT64, ["batch", "seq"]))
    found = plan_bounds(saved(proto, tmp_path), "seq", 1, LONGEST).dimension
    assert (found.exact, found.masks) == (not guarded, ("mask",) if guarded else ())


def test_a_beginning_that_every_query_has_may_see_all_of_itself(tmp_path: Path) -> None:
    path = saved(SHOWS["a beginning that sees all of itself"], tmp_path)
    assert [plan_bounds(path, "seq", low, LONGEST).dimension.exact for low in (2, 3)] == [True, False]
    path = saved(SHOWS["one position ahead"], tmp_path)
    assert plan_bounds(path, "seq", 3, LONGEST).dimension.exact


@pytest.mark.parametrize(
    ("nodes", "holds"),
    [
        ([node("Mul", ["x", "triangle"], ["y"])], True),
        ([node("Add", ["x", "triangle"], ["y"])], False),
        ([node("Div", ["triangle", "x"], ["y"])], True),
        ([node("Where", ["lower", "x", "nothing"], ["y"])], True),
        ([node("Where", ["lower", "nothing", "x"], ["y"])], False),
        ([node("Mul", ["x", "triangle"], ["a"]), node("Relu", ["a"], ["y"])], True),
        ([node("Mul", ["x", "triangle"], ["a"]), node("Exp", ["a"], ["y"])], False),
        ([node("Mul", ["x", "triangle"], ["a"]), node("Transpose", ["a"], ["y"], perm=[0, 2, 1])], False),
    ],
)
def test_zeros_that_constants_make(nodes: list[Any], holds: bool, tmp_path: Path) -> None:
    """The triangles are computed from the extent, as those of exporters are."""
    triangle = [
        node("Shape", ["x"], ["s"], start=1),
        node("Expand", ["unit", "s"], ["ones"]),
        node("Trilu", ["ones"], ["triangle"], upper=0),
        node("Cast", ["triangle"], ["lower"], to=TensorProto.BOOL),
    ]
    constants = [constant("unit", np.ones(1, np.float32)), constant("nothing", np.float32(0))]
    ports = [("x", FLOAT, ["batch", "seq", "seq"])], [("y", FLOAT, ["batch", "seq", "seq"])]
    path = saved(model([*triangle, *nodes], *ports, constants), tmp_path)
    large, small = (load_model(path, fixed=FixedExtent("seq", extent, batch=2)) for extent in (9, 6))
    positions = Positions(large, small, 9, 6, 1, 2)
    positions.check()
    assert CausalZeros(positions).hold("y", 2) == holds
