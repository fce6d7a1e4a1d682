"""Columns of a graph, and safety steps that ranges prove needless; both on ONNX that ONNX Runtime runs."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import GraphProto, TensorProto, helper, numpy_helper

from veltair.compiler.features.from_onnx.identify_columns import gathered_tables, identify_columns
from veltair.compiler.features.from_onnx.safety_steps import drop_proved_steps
from veltair.compiler.features.index_ranges import (
    IndexRange,
    KeepAll,
    MapInto,
    RemoveOutside,
    ReplaceOutside,
    propagate_range,
    proves_in_bounds,
    simplify_steps,
)


def graph_of(*lines: str, rank: int = 1, **weights: object) -> GraphProto:
    """Nodes as "output = Op(input, input) key=value"; x is the int64 input, y the float output."""
    nodes = []
    for line in lines:
        output, _, call = line.partition(" = ")
        op, _, rest = call.partition("(")
        names, _, attributes = rest.partition(")")
        given = {k: int(v) for k, _, v in (pair.partition("=") for pair in attributes.split())}
        nodes.append(helper.make_node(op, [n for n in names.split(", ") if n], [output], name=output, **given))
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ["B", "n"][:rank])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    return helper.make_graph(nodes, "g", [x], [y], values)


def run(graph: GraphProto, x: list[int]) -> np.ndarray:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return np.asarray(ort.InferenceSession(model.SerializeToString()).run(None, {"x": np.array(x)})[0])


TABLE = np.arange(20, dtype=np.float32).reshape(10, 2)


def test_columns_end_where_several_tables_meet() -> None:
    """RECom fig. 3: two columns share an operator before them; the concatenation and what follows are of none."""
    graph = graph_of(
        "shared = Abs(x)",
        "a = Mod(shared, ten)",
        "a.rows = Gather(a.t, a)",
        "a.half = Mul(a.rows, half)",
        "b = Mod(shared, three)",
        "b.rows = Gather(b.t, b)",
        "both = Concat(a.half, b.rows) axis=1",
        "y = MatMul(both, w)",
        **{"ten": 10, "three": 3, "half": np.float32(0.5), "a.t": TABLE, "b.t": TABLE, "w": TABLE[:2].reshape(4, 1)},
    )
    assert gathered_tables(graph) == ["a.t", "b.t"]
    found = {column.table: column.operators for column in identify_columns(graph.node, gathered_tables(graph))}
    assert found == {"a.t": ("shared", "a", "a.rows", "a.half"), "b.t": ("shared", "b", "b.rows")}


PROVED = [
    (["i = Mod(x, ten)", "low = GreaterOrEqual(i, zero)", "s = Where(low, i, zero)", "y = Gather(t, s)"], ["s"]),
    (["i = Mod(x, ten)", "s = Clip(i, zero, nine)", "k = Identity(s)", "y = Gather(t, k)"], ["s"]),
    (["i = Mod(x, ten)", "low = Less(i, ten)", "s = Compress(i, low)", "y = Gather(t, s)"], []),  # of unknown rank
    (["s = Max(x, zero)", "i = Mod(s, ten)", "e = Max(i, zero)", "y = Gather(t, e)"], ["e"]),  # the first one stays
    (["i = Mod(x, ten)", "s = Min(i, eight)", "y = Gather(t, s)"], []),  # 9 is possible
    (["s = Clip(x, zero, nine)", "e = Max(s, zero)", "y = Gather(t, e)"], ["e"]),
    (
        [
            "low = Less(x, ten)",
            "high = GreaterOrEqual(x, zero)",
            "in = And(low, high)",
            "s = Where(in, x, zero)",
            "e = Clip(s, zero, nine)",
            "y = Gather(t, e)",
        ],
        ["e"],
    ),
    (["i = Mod(x, ten)", "low = GreaterOrEqual(i, lifted)", "s = Where(low, i, zero)", "y = Gather(t, s)"], []),
]


@pytest.mark.parametrize(("lines", "dropped"), PROVED)
def test_only_proved_safety_steps_go(lines: list[str], dropped: list[str]) -> None:
    numbers = {"zero": 0, "eight": 8, "nine": 9, "ten": 10, "lifted": [[0]], "t": TABLE}
    graph, before = (graph_of(*lines, **numbers) for _ in range(2))
    x = [-(2**40), -11, -1, 0, 3, 9, 10, 25, 2**62]
    assert drop_proved_steps(graph) == dropped
    np.testing.assert_array_equal(run(graph, x), run(before, x))
    assert not any(node.name in dropped for node in graph.node)


def test_a_removal_of_known_rank_goes() -> None:
    lines = ["low = Less(x, ten)", "s = Compress(x, low)", "y = Gather(t, s)"]
    graph = graph_of(*lines, ten=10, t=TABLE)
    assert drop_proved_steps(graph) == []  # x may be anything
    assert drop_proved_steps(graph, {"x": IndexRange(0, 10)}) == ["s"]
    assert [node.op_type for node in graph.node] == ["Gather"]
    assert drop_proved_steps(graph_of(*lines, ten=10, t=TABLE, rank=2), {"x": IndexRange(0, 10)}) == []  # it flattens


def test_boundaries_and_vocabularies_have_ranges() -> None:
    lines = [
        "ge = GreaterOrEqual(x, edges)",
        "c = Cast(ge) to=7",
        "i = ReduceSum(c, last) keepdims=0",
        "s = Clip(i, zero, three)",
        "y = Gather(t, s)",
    ]
    numbers = {"edges": [0, 5, 9], "last": [-1], "zero": 0, "three": 3, "t": TABLE}
    graph = graph_of(*lines, rank=2, **numbers)
    assert drop_proved_steps(graph) == ["s"]
    fewer = graph_of(*lines, rank=2, **(numbers | {"three": 2}))
    assert drop_proved_steps(fewer) == []


def test_ranges_of_the_four_patterns() -> None:
    """RECom fig. 20."""
    four = IndexRange(0, 4)
    assert propagate_range([MapInto(four), KeepAll()])[-1] == four
    assert propagate_range([MapInto(IndexRange(-9, 4)), ReplaceOutside(IndexRange(low=0), 0)])[-1] == four
    assert propagate_range([MapInto(IndexRange(-9, 4)), RemoveOutside(IndexRange(low=0))])[-1] == four
    assert simplify_steps(
        [MapInto(four), RemoveOutside(IndexRange(low=0)), KeepAll(), ReplaceOutside(IndexRange(0, 9), 1)]
    ) == (MapInto(four),)
    merged = (MapInto(IndexRange(-9, 9)), RemoveOutside(four))  # successive removals become one
    assert (
        simplify_steps(
            [MapInto(IndexRange(-9, 9)), RemoveOutside(IndexRange(low=0)), RemoveOutside(IndexRange(high=4))]
        )
        == merged
    )
    assert proves_in_bounds(merged, 4) and not proves_in_bounds(merged, 3)
