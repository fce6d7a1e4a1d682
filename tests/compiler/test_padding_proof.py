"""Which models may be padded along a dimension: decided on small graphs, each of which pads rightly or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from open_dimensions import constant, model, node, plan_bounds, text, weight

from veltair.compiler.dimension_plan import bucket_extents
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
LOW, HIGH = 1, 9


def plan(proto: onnx.ModelProto, tmp_path: Path, name: str = "seq") -> Any:
    path = tmp_path / "open.onnx"
    onnx.save(proto, str(path))
    return plan_bounds(path, name, LOW, HIGH).dimension


def of_floats(*nodes: onnx.NodeProto, out: list[Any], constants: Any = (), mask: bool = False) -> onnx.ModelProto:
    """From x (batch, seq, 4), and a mask (batch, seq), to y."""
    inputs = [("x", FLOAT, ["batch", "seq", 4])] + [("mask", INT64, ["batch", "seq"])] * mask
    return model(list(nodes), inputs, [("y", FLOAT, out)], list(constants))


AXIS = constant("axis", np.array([1], np.int64))
LAST = constant("last", np.array([2], np.int64))
PADDED = {
    "each position by itself": of_floats(node("Sigmoid", ["x"], ["y"]), out=["batch", "seq", 4]),
    "a sum of zeros": of_floats(node("ReduceSum", ["x", "axis"], ["y"]), out=["batch", 1, 4], constants=[AXIS]),
    "a sum with a mask": of_floats(
        node("Exp", ["x"], ["e"]),
        node("Unsqueeze", ["mask", "last"], ["m"]),
        node("Cast", ["m"], ["f"], to=FLOAT),
        node("Mul", ["e", "f"], ["k"]),
        node("ReduceSum", ["k", "axis"], ["y"]),
        out=["batch", 1, 4],
        constants=[AXIS, LAST],
        mask=True,
    ),
    "rows put together": of_floats(
        node("Reshape", ["x", "flat"], ["r"]),
        node("MatMul", ["r", "w"], ["p"]),
        node("Shape", ["x"], ["s"]),
        node("Reshape", ["p", "s"], ["y"]),
        out=["batch", "seq", 4],
        constants=[constant("flat", np.array([-1, 4], np.int64)), weight("w", 4, 4)],
    ),
    "sums of what came before": of_floats(
        node("CumSum", ["x", "axis"], ["y"]), out=["batch", "seq", 4], constants=[AXIS]
    ),
    "floats of 16 bits": of_floats(
        node("Relu", ["x"], ["r"]),
        node("ReduceSum", ["r", "axis"], ["sum"]),
        node("Cast", ["sum"], ["half"], to=TensorProto.FLOAT16),
        node("Cast", ["half"], ["y"], to=FLOAT),
        out=["batch", 1, 4],
        constants=[AXIS],
    ),
    "an output of constant rows": model(
        [
            node("Relu", ["x"], ["r"]),
            node("ReduceSum", ["r", "axis"], ["y"]),
            node("Shape", ["x"], ["s"], end=1),
            node("ConstantOfShape", ["s"], ["zeros"]),
        ],
        [("x", FLOAT, ["batch", "seq", 4])],
        [("y", FLOAT, ["batch", 1, 4]), ("zeros", FLOAT, ["batch"])],
        [AXIS],
    ),
}
SHOWS = {
    "a sum of what is not zero": of_floats(
        node("Exp", ["x"], ["e"]), node("ReduceSum", ["e", "axis"], ["y"]), out=["batch", 1, 4], constants=[AXIS]
    ),
    "a maximum": of_floats(node("ReduceMax", ["x"], ["y"], axes=[1]), out=["batch", 1, 4]),
    "a mean": of_floats(node("ReduceMean", ["x"], ["y"], axes=[1]), out=["batch", 1, 4]),
    "sums of what comes behind": of_floats(
        node("CumSum", ["x", "axis"], ["y"], reverse=1), out=["batch", "seq", 4], constants=[AXIS]
    ),
    "the last position but one": of_floats(
        node("Gather", ["x", "end"], ["y"], axis=1), out=["batch", 4], constants=[constant("end", np.int64(-2))]
    ),
    "the length in the values": of_floats(
        node("Shape", ["x"], ["s"], start=1, end=2),
        node("Cast", ["s"], ["f"], to=FLOAT),
        node("Div", ["x", "f"], ["y"]),
        out=["batch", "seq", 4],
    ),
    "positions in one row": of_floats(
        node("Reshape", ["x", "flat"], ["r"]),
        node("Softmax", ["r"], ["y"], axis=-1),
        out=["batch", None],
        constants=[constant("flat", np.array([0, -1], np.int64))],
    ),
    "positions turned around": of_floats(
        node("Slice", ["x", "end", "begin", "axis", "end"], ["y"]),
        out=["batch", "seq", 4],
        constants=[AXIS, constant("end", np.array([-1], np.int64)), constant("begin", np.array([-99], np.int64))],
    ),
    "a mask too weak": of_floats(
        node("Unsqueeze", ["mask", "last"], ["m"]),
        node("Cast", ["m"], ["f"], to=FLOAT),
        node("Sub", ["f", "ones"], ["i"]),
        node("Add", ["x", "i"], ["k"]),
        node("Softmax", ["k"], ["y"], axis=1),
        out=["batch", "seq", 4],
        constants=[LAST, constant("ones", np.ones(1, np.float32))],
        mask=True,
    ),
}


@pytest.mark.parametrize("name", PADDED)
def test_padding_that_never_shows_is_proved(name: str, tmp_path: Path) -> None:
    found = plan(PADDED[name], tmp_path)
    assert (found.exact, found.reason, found.masks, found.extents) == (False, "", (), (9, 8))


@pytest.mark.parametrize("name", SHOWS)
def test_padding_that_may_show_is_not_done(name: str, tmp_path: Path) -> None:
    found = plan(SHOWS[name], tmp_path)
    assert found.exact and found.reason and found.extents == (9,)


def test_an_attention_is_padded_by_its_mask(tmp_path: Path) -> None:
    found = plan(text(), tmp_path)
    assert (found.exact, found.masks, found.axes["tokens"]) == (False, ("mask",), (1,))
    assert "pooled" not in found.axes
    assert plan(text(mask=""), tmp_path).exact
    assert "ReduceMean" in plan(text(pool="mean"), tmp_path).reason


def test_a_mask_that_says_what_does_not_count(tmp_path: Path) -> None:
    """Padded with ones; a query may put out every position, which nobody can tell from padding."""
    found = plan(text(mask="ignore"), tmp_path)
    assert found.exact and "ignore" in found.reason


def test_a_dimension_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no input has a dimension 'length'; symbolic dimensions: 'batch', 'seq'"):
        plan(text(), tmp_path, "length")


@pytest.mark.parametrize(("low", "high"), [(1, 512), (1, 1000), (20, 300), (7, 9), (1, 2)])
def test_every_multiple_of_32_is_near_a_bucket(low: int, high: int) -> None:
    extents = bucket_extents(low, high)
    assert extents[0] == high and list(extents) == sorted(set(extents), reverse=True)
    for extent in range(32 * max(1, -(-low // 32)), high + 1, 32):
        assert min(each for each in extents if each >= extent) <= extent * 10 / 9


def test_a_table_of_bytes_is_taken_as_it_is_where_nothing_is_padded(tmp_path: Path) -> None:
    """ONNX Runtime runs all of the model, the look-up too."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("DequantizeLinear", ["rows", "scale", "zero"], ["wide"]),
        helper.make_node("ReduceMax", ["wide"], ["y"], axes=[1], keepdims=0),
    ]
    constants = {"table": np.eye(40, 16, dtype=np.int8), "scale": np.float32(0.5), "zero": np.int8(1)}
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "seq"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    plan = plan_bounds(path, "seq", 2, 9)
    assert plan.dimension.exact
    loaded = load_model(path, 3, fixed=plan.fixed[0], output_room=plan.output_room)
    assert [layer.op for layer in lower(loaded, "fp32").layers] == ["onnxruntime"]
