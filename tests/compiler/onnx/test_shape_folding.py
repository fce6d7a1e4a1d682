"""Shapes that exporters compute at run time are gone from a loaded model, which computes what it did before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx_protos import I64, F, model, node, port, rebuilt, run, saved

from veltair.compiler.onnx.folding.shape_folding import ROWS
from veltair.compiler.onnx.folding.shape_propagation import ShapePropagation, TensorFacts
from veltair.compiler.onnx.onnx_model import OnnxModel, load_model

BOOL = TensorProto.BOOL
COMPUTING = {"Shape", "Size", "Range", "ConstantOfShape", "Equal", "If"}
CONSTANTS = {
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "three": np.array(3),
    "four": np.array(4),
    "v0": np.array([0]),
    "v1": np.array([1]),
    "v2": np.array([2]),
    "v-1": np.array([-1]),
    "v4": np.array([4]),
    "cls": np.arange(4, dtype=np.float32).reshape(1, 1, 4),
    "table": np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32),
    "low": np.array(-np.inf, np.float32),
    "nought": np.array(0, np.float32),
    "half": np.array(0.5, np.float32),
    "back": np.array([-1, 12]),
}
X = ["n", 3, 4]


def net(*nodes: onnx.NodeProto, inputs: Any = None, outputs: Any = None) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(value, name) for name, value in CONSTANTS.items()]
    return model(list(nodes), inputs or [port("x", X)], outputs or [port("y", None)], constants)


def step(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    made = node(op, inputs, output, **attributes)
    made.name = output
    return made


def the_batch(output: str = "n") -> list[onnx.NodeProto]:
    """The batch as a scalar, as PyTorch's exporters spell it."""
    return [step("Shape", "x", f"{output}/s"), step("Gather", f"{output}/s zero", output, axis=0)]


def stacked(*names: str, output: str) -> list[onnx.NodeProto]:
    """Scalars as a vector."""
    parts = [step("Unsqueeze", f"{name} v0", f"{output}/{i}") for i, name in enumerate(names)]
    return [*parts, step("Concat", " ".join(f"{output}/{i}" for i in range(len(names))), output, axis=0)]


BOUNDED_SIZE = [
    step("ConstantOfShape", "v2", "ones", value=numpy_helper.from_array(np.array([1]))),
    *stacked("n", "one", output="t"),
    step("Equal", "t ones", "is1"),
    step("Where", "is1 t t", "size"),
]
# As `squeeze(1)` is exported: both branches use the same names for themselves, one a constant of its own.
SQUEEZED = helper.make_graph(
    [step("Squeeze", "sum axis", "less"), step("Neg", "less", "out")],
    "then",
    [],
    [port("out", ["m", 4])],
    [numpy_helper.from_array(np.array([1]), "axis")],
)
KEPT = helper.make_graph([step("Identity", "sum", "out")], "else", [], [port("out", ["m", 1, 4])])
EXPANDED = [*the_batch(), *stacked("three", "n", "four", output="shape"), step("Expand", "cls shape", "e")]
NETS = {
    "a reshape to batch and constants": net(
        *the_batch(), *stacked("n", "two", "two", "three", output="t"), step("Reshape", "x t", "y")
    ),
    "a reshape with the batch times a constant": net(
        *the_batch(),
        step("Mul", "n three", "rows"),
        *stacked("rows", "four", output="t"),
        step("Reshape", "x t", "flat"),
        step("Reshape", "flat back", "y"),
    ),
    "a shape divided, subtracted and cast": net(
        step("Shape", "x", "s"),
        step("Cast", "s", "f", to=F),
        step("Mul", "f half", "halves"),
        step("Cast", "halves", "i", to=I64),
        step("Slice", "i v2 v4 v0", "w"),
        step("Slice", "s v0 v1 v0", "rows"),
        step("Concat", "rows w v-1", "t", axis=0),
        step("Reshape", "x t", "y"),
    ),
    "positions from a range": net(
        step("Shape", "x", "s"),
        step("Gather", "s one", "length", axis=0),
        step("Range", "zero length one", "positions"),
        step("Gather", "table positions", "rows", axis=0),
        step("Add", "x rows", "y"),
    ),
    "positions expanded to the batch": net(
        *the_batch(),
        step("Range", "zero three one", "positions"),
        step("Unsqueeze", "positions v0", "row"),
        *stacked("n", "three", output="t"),
        step("Expand", "row t", "ids"),
        step("Gather", "table ids", "rows", axis=0),
        step("Add", "x rows", "y"),
    ),
    "a class token in front": net(
        *the_batch(),
        *stacked("n", "one", "four", output="t"),
        step("Expand", "cls t", "token"),
        step("Concat", "token x", "y", axis=1),
    ),
    "an expand guarded by where": net(
        *the_batch(),
        *BOUNDED_SIZE,
        step("Concat", "size v4", "t3", axis=0),
        step("Expand", "cls t3", "token"),
        step("Concat", "token x", "y", axis=1),
    ),
    "a computed tensor expanded to a shape": net(
        step("ReduceSum", "x v1", "sum", keepdims=1),
        step("Shape", "x", "s"),
        step("Expand", "sum s", "wide"),
        step("Concat", "x wide", "y", axis=-1),
    ),
    "a slice up to the batch": net(*the_batch("n"), *stacked("n", output="e"), step("Slice", "x v0 e v0", "y")),
    "a causal mask": net(
        step("Shape", "x", "s"),
        step("Gather", "s one", "length", axis=0),
        *stacked("length", "length", output="square"),
        step("ConstantOfShape", "square", "all", value=numpy_helper.from_array(np.ones(1, np.float32))),
        step("Trilu", "all", "lower", upper=0),
        step("Cast", "lower", "seen", to=BOOL),
        step("Transpose", "x", "xt", perm=[0, 2, 1]),
        step("MatMul", "x xt", "scores"),
        step("Where", "seen scores low", "masked"),
        step("Softmax", "masked", "y", axis=-1),
    ),
    "a branch that a shape decides": net(
        step("ReduceSum", "x v1", "sum", keepdims=1),
        step("Shape", "sum", "s"),
        step("Gather", "s one", "extent", axis=0),
        step("Equal", "extent one", "single"),
        step("If", "single", "squeezed", then_branch=SQUEEZED, else_branch=KEPT),
        step("If", "single", "again", then_branch=SQUEEZED, else_branch=KEPT),
        step("Add", "squeezed again", "y"),
        outputs=[port("y", ["n", 4])],
    ),
    "rows counted along the batch": net(
        *the_batch(),
        step("Range", "zero n one", "index"),
        step("Unsqueeze", "index v1", "column"),
        step("GatherND", "x column", "y"),
    ),
    "a constant output": net(
        step("Relu", "x", "r"),
        step("Range", "zero three one", "positions"),
        step("Gather", "table positions", "y", axis=0),
        outputs=[port("r", None), port("y", None)],
    ),
    "an initializer as an output that is read too": net(
        step("Add", "x cls", "y"), outputs=[port("y", None), port("cls", (1, 1, 4))]
    ),
    "row numbers that are a part of indices": net(
        *the_batch(),
        step("Range", "zero n one", "index"),
        step("Unsqueeze", "index v1", "column"),
        step("ReduceMax", "x", "most", axes=[1, 2], keepdims=0),
        step("Cast", "most", "whole", to=I64),
        step("Clip", "whole zero two", "inside"),
        step("Unsqueeze", "inside v1", "second"),
        step("Concat", "column second", "places", axis=1),
        step("GatherND", "x places", "y"),
    ),
    "rows repeated along the second axis": net(*EXPANDED, step("Einsum", "x e", "y", equation="nij,inj->ni")),
    "no input reaches the output": net(step("Relu", "cls", "y")),
}


def load(folder: Path, proto: onnx.ModelProto) -> OnnxModel:
    return load_model(saved(folder, proto), 5)


@pytest.mark.parametrize("proto", NETS.values(), ids=NETS)
def test_what_is_left_computes_the_same(tmp_path: Path, proto: onnx.ModelProto) -> None:
    loaded = load(tmp_path, proto)
    assert not COMPUTING & {n.op_type for n in loaded.nodes}
    for batch in (1, 2, 5):
        feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 3, 4)).astype(np.float32)}
        for ours, theirs in zip(run(rebuilt(loaded, batch), feeds), run(proto, feeds), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_repeated_rows_are_one_row_where_the_reader_broadcasts(tmp_path: Path) -> None:
    loaded = load(tmp_path, NETS["positions expanded to the batch"])
    assert [n.op_type for n in loaded.nodes] == ["Add"]
    token = load(tmp_path, NETS["a class token in front"])
    assert [n.op_type for n in token.nodes] == [ROWS, "Concat"]
    assert token.initializers[token.nodes[0].input[0]].shape == (1, 1, 4)


def test_queries_share_no_batch_where_numbers_of_rows_are_values(tmp_path: Path) -> None:
    numbers = [
        *the_batch(),
        step("Range", "zero n one", "index"),
        step("ReduceMax", "x", "most", axes=[1, 2], keepdims=0),
        step("Cast", "most", "whole", to=I64),
        step("Add", "whole index", "sum"),
        step("Cast", "sum", "y", to=F),
    ]
    output = [*the_batch(), step("Range", "zero n one", "y"), step("Relu", "x", "r")]
    for proto in (net(*numbers), net(*output, outputs=[port("y", ["m"], I64), port("r", None)])):
        loaded = load(tmp_path, proto)
        assert not loaded.mergeable
        for batch in (1, 5):
            feeds = {"x": np.random.default_rng(batch).standard_normal((batch, 3, 4)).astype(np.float32)}
            for ours, theirs in zip(run(rebuilt(loaded, batch), feeds), run(proto, feeds), strict=True):
                np.testing.assert_array_equal(ours, theirs)


def test_queries_share_no_batch_where_an_index_of_theirs_could_reach_another_row(tmp_path: Path) -> None:
    """TorchScript gathers from flattened rows at `row * length + id`; coordinates are each bounded by their axis."""
    flat = [
        *the_batch(),
        step("Range", "zero n one", "index"),
        step("ReduceMax", "x", "most", axes=[1, 2], keepdims=0),
        step("Cast", "most", "whole", to=I64),
        step("Mul", "index three", "begin"),
        step("Add", "begin whole", "at"),
        *stacked("n", output="size"),
        step("Reshape", "x back", "rows"),
        step("Gather", "rows at", "y", axis=0),
    ]
    assert not load(tmp_path, net(*flat)).mergeable
    assert load(tmp_path, NETS["row numbers that are a part of indices"]).mergeable
    assert load(tmp_path, NETS["a constant output"]).mergeable


def test_a_value_too_large_to_compute_stays_a_node() -> None:
    size = np.array([1 << 40])
    nodes = [step("ConstantOfShape", "size", "z"), step("Shape", "z", "s")]
    facts = ShapePropagation(nodes, {"": 17}, {}, {"size": size}, {"s"}, Path("m.onnx")).run()
    assert facts["z"].values is None and facts["z"].shapes == ((1 << 40,),)
    assert facts["s"].constant is not None and facts["s"].constant.tolist() == [1 << 40]


# Chains of random operators on small integers, as they compute shapes.
STEPS = [
    *((op, "{0} {1}", {}) for op in ("Add", "Sub", "Mul", "Max", "Min")),
    ("Concat", "{0} {1}", {"axis": 0}),
    ("Slice", "{0} v0 v2", {}),
    ("Slice", "{0} v1 v4", {}),
    ("Gather", "{0} v-1", {"axis": 0}),
    ("Cast", "{0}", {"to": F}),
    ("Cast", "{0}", {"to": I64}),
    ("ReduceProd", "{0}", {"keepdims": 1}),
    ("Shape", "{0}", {}),
    ("Tile", "{0} v2", {}),
    ("Neg", "{0}", {}),
    ("Abs", "{0}", {}),
]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=8))
def test_values_are_those_of_onnx_runtime(steps: list[tuple[tuple[str, str, dict[str, Any]], int, int]]) -> None:
    names = ["s", "v0", "v2", "v-1"]
    nodes = [step("Shape", "x", "s")]
    for (op, pattern, attributes), a, b in steps:
        names.append(f"t{len(names)}")
        inputs = pattern.format(names[a % (len(names) - 1)], names[b % (len(names) - 1)])
        nodes.append(step(op, inputs, names[-1], **attributes))
    outputs = [onnx.ValueInfoProto(name=name) for name in names if name not in CONSTANTS]
    batches = (7, 11)
    try:
        expected = [run(net(*nodes, outputs=outputs), {"x": np.zeros((b, 3, 4), np.float32)}) for b in batches]
    except Exception:  # types or extents that do not fit: no model
        return
    inputs = {"x": TensorFacts.of_type(F, [(b, 3, 4) for b in batches])}
    kept = {output.name for output in outputs}
    facts = ShapePropagation(nodes, {"": 17}, inputs, CONSTANTS, kept, Path("m.onnx")).run()
    for output, *wanted in zip(outputs, *expected, strict=True):
        values = facts[output.name].values
        assert values is not None
        for ours, theirs in zip(values, wanted, strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)
