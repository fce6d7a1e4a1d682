"""Columns that ONNX itself says: taken out of the model, and equal to ONNX Runtime on all of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from features.column_nets import CHANCE, CITY, HISTORY, INT, MEAN, ML, STRING, Inputs, encoder, model, node
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.features.feature_model import join_features
from veltair.compiler.features.feature_reference import reference_inputs, reference_layer
from veltair.compiler.features.kernel.columns_kernel import ColumnsSpace
from veltair.compiler.features.random_features import draw_buffers
from veltair.compiler.onnx.onnx_model import load_model
from veltair.machine.isa import cpu_features
from veltair.profiles.artifact.strings import Strings

WHOLE: list[Any] = [
    ([*CITY, node("Relu", ["city.rows"], "y")], {"city": (STRING, ["B"])}),
    (
        [*CITY, *HISTORY, *MEAN, node("Concat", ["mean", "plain", "city.rows"], "y", axis=1)],
        {"city": (STRING, ["B"]), "history": (STRING, ["B"]), "plain": (TensorProto.FLOAT, ["B", 2])},
    ),
    (
        [*CITY, *HISTORY, node("Concat", ["city.rows", "summed"], "y", axis=1)],
        {"city": (STRING, ["B"]), "history": (STRING, ["B"])},
    ),
    (  # guards between: ids are doubled, and what is above 4 goes to 0
        [
            encoder("city", "id", ["Rome", "Oslo"], [1, 3], 2),
            node("Reshape", ["id", "flat"], "id.flat"),
            node("Mul", ["id.flat", "two"], "id.twice"),
            node("Greater", ["id.twice", "top"], "large"),
            node("Where", ["large", "zero", "id.twice"], "id.kept"),
            node("Gather", ["cities", "id.kept"], "rows"),
            node("Relu", ["rows"], "y"),
        ],
        {"city": (STRING, ["B", 1])},
    ),
    (  # (B, 1, width), as it comes from ids of two dimensions, flattened or not
        [*CITY, node("Flatten", ["city.rows"], "flattened"), node("Relu", ["flattened"], "y")],
        {"city": (STRING, ["B", 1])},
    ),
    ([*CITY, node("Transpose", ["city.rows"], "y", perm=[0, 2, 1])], {"city": (STRING, ["B", 1])}),
    (
        [
            node(
                "CategoryMapper",
                ["city"],
                "id",
                domain=ML,
                cats_strings=["x", "y"],
                cats_int64s=[4, 2],
                default_int64=0,
            ),
            node("Gather", ["cities", "id"], "rows"),
            node(
                "LabelEncoder",
                ["n"],
                "weight",
                domain=ML,
                keys_int64s=[5, -7],
                values_floats=[0.5, 2.0],
                default_float=1.5,
            ),
            node("Cast", ["price"], "cost", to=TensorProto.FLOAT),
            node("Mul", ["rows", "weight"], "weighed"),
            node("Add", ["weighed", "cost"], "y"),
        ],
        {"city": (STRING, ["B"]), "n": (INT, ["B", 1]), "price": (STRING, ["B", 1])},
    ),
    (  # a cross of two texts in other cases, a constant between them
        [
            node("StringNormalizer", ["city"], "low", case_change_action="LOWER", locale="C"),
            node("StringConcat", ["low", "dash"], "left"),
            node("StringConcat", ["left", "kind"], "cross"),
            node("StringNormalizer", ["cross"], "same", case_change_action="NONE", locale="C"),
            encoder("same", "id", ["rome-X", "oslo-", "-y", "bonn-X", "x-"], [1, 2, 3, 0, 4], -9),
            node("Abs", ["id"], "id.some"),
            node("Clip", ["id.some", "zero", "top"], "id.kept"),
            node("Gather", ["cities", "id.kept"], "rows"),
            node("Relu", ["rows"], "y"),
        ],
        {"city": (STRING, ["B"]), "kind": (STRING, ["B"])},
    ),
    (  # tokens in capitals; a kelvin sign is a K in lower case
        [
            node("StringNormalizer", ["history"], "up", case_change_action="UPPER", locale="C.UTF-8"),
            node("StringSplit", ["up"], ["tokens", "n"], delimiter=";"),
            encoder("tokens", "token.id", ["A", "B", "CC"], [2, 0, 5], 6),
            *HISTORY[2:],
            node("StringNormalizer", ["kind"], "small", case_change_action="LOWER", locale="C.UTF-8"),
            encoder("small", "city.id", ["x", "k", "i"], [1, 2, 3], 0),
            CITY[1],
            node("Concat", ["summed", "city.rows"], "y", axis=1),
        ],
        {"history": (STRING, ["B"]), "kind": (STRING, ["B"])},
    ),
    *(  # boundaries, one of them twice, in any order
        (
            [
                node(op, ["edges", "x"] if turned else ["x", "edges"], "held"),
                node("Cast", ["held"], "ones", to=kind),
                node("ReduceSum", ["ones", "one"], "bucket", keepdims=0),
                node("Cast", ["bucket"], "id", to=INT),
                node("Gather", ["cities", "id"], "rows"),
                node("Relu", ["rows"], "y"),
            ],
            {"x": (TensorProto.FLOAT, ["B", 1])},
        )
        for op, turned, kind in (
            ("GreaterOrEqual", False, INT),
            ("Greater", False, TensorProto.FLOAT),
            ("Less", False, INT),
            ("LessOrEqual", False, TensorProto.INT32),
            ("Less", True, INT),
        )
    ),
    (
        [
            *CITY,
            node("Cast", ["n"], "x", to=TensorProto.FLOAT),
            node("GreaterOrEqual", ["x", "few"], "held"),
            node("Cast", ["held"], "ones", to=INT),
            node("ReduceSum", ["ones", "one"], "id"),
            node("Gather", ["items", "id"], "rows"),
            node("Flatten", ["rows"], "flattened"),
            node("Concat", ["flattened", "city.rows"], "y", axis=1),
        ],
        {"n": (INT, ["B", 1]), "city": (STRING, ["B"])},
    ),
]
TEXTS = {
    "city": [b"Rome", b"Oslo", b"", b"x", b"y", b"Bonn"],
    "history": [b"a;cc", b"b", b"a;;b;none", b"", b"cc;cc;cc", b";"],
    "kind": [b"X", b"", b"y", "\u212a".encode(), "\u0130".encode(), b"X"],
    "price": [b"1.5", b"-2e1", b"7", b"0", b"12", b"3"],
}


def drawn(inputs: Inputs, batch: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (kind, shape) in inputs.items():
        if kind == STRING:
            found[name] = Strings.from_values([TEXTS[name][i % 6] for i in range(batch)])
        elif kind == INT:
            found[name] = np.array([[5, -7, 3][i % 3] for i in range(batch)])[:, None]
        else:
            found[name] = CHANCE.standard_normal((batch, shape[1])).astype(np.float32)
            if name == "x":  # on an edge, just beside it, none at all
                found[name][:5, 0] = np.nan, 0, -0.0, np.nextafter(np.float32(2), np.float32(3)), np.inf
    return found


def run(path: str | bytes, feeds: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    result: NDArray[Any] = ort.InferenceSession(path, options).run(None, dict(feeds))[0]
    return result


@pytest.mark.parametrize(("nodes", "inputs"), WHOLE)
def test_what_is_left_gives_the_same_behind_the_columns(nodes: Any, inputs: Inputs, tmp_path: Path) -> None:
    path = model(tmp_path / "m.onnx", nodes, inputs, ["y"])
    raw = drawn(inputs, 6)
    feeds = {
        name: (np.array([t.decode() for t in raw[name].tolist()], object) if kind == STRING else raw[name]).reshape(
            -1, *shape[1:]
        )
        for name, (kind, shape) in inputs.items()
    }
    expected = run(str(path), feeds)
    loaded = load_model(path, 6)
    front = join_features(loaded, None)
    assert front is not None
    behind = front.model
    ports = [*behind.inputs, *(behind.values[joined.name] for joined in front.description.inputs)]
    left = helper.make_graph(
        behind.nodes,
        "left",
        [helper.make_tensor_value_info(p.name, TensorProto.FLOAT, ["B", *p.shape[1:]]) for p in ports],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in loaded.initializers.items()],
    )
    rest = helper.make_model(left, opset_imports=[helper.make_opsetid("", loaded.opset)], ir_version=9)
    given = reference_inputs(front.description, raw, front.tables) | {k: v for k, v in feeds.items() if k == "plain"}
    np.testing.assert_allclose(run(rest.SerializeToString(), given), expected, rtol=1e-5, atol=1e-6)
    assert {port.name for port in front.layout.inputs} == set(inputs) - {"plain"}


def test_columns_side_by_side_are_one_kernel(tmp_path: Path) -> None:
    nodes, inputs = WHOLE[2]
    front = join_features(load_model(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), 4), None)
    assert front is not None
    assert [len(joined.columns) for joined in front.description.inputs] == [2]
    (spec,) = front.layers
    assert ColumnsSpace().build(spec, ColumnsSpace().points(spec, cpu_features())[0], cpu_features()).weights
    banks = draw_buffers(front.description, ["ends", "bytes"], 3, np.random.default_rng(1))
    assert reference_layer(spec, banks).shape == (3, 7)


@pytest.mark.parametrize("other", ["x", "held", "bucket"])
def test_numbers_that_are_not_only_counted_are_left_alone(other: str, tmp_path: Path) -> None:
    nodes, inputs = WHOLE[9]
    nodes = [
        *nodes[:-1],
        node("Cast", [other], "also", to=1),
        node("ReduceMax", ["also"], "m"),
        node("Add", ["rows", "m"], "y"),
    ]
    loaded = load_model(model(tmp_path / "m.onnx", nodes, inputs, ["y"]), 4)
    assert loaded.columns is None and [port.name for port in loaded.inputs] == ["x"]
