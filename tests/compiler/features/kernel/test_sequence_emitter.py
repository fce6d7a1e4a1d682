"""Ids and rows in their order, cut off and filled up, their lengths and masks; and a model that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from features.compiled_columns import WORDS, CompiledColumns, make_description, texts
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from veltair.cli import main
from veltair.compiler.build import compile_model
from veltair.compiler.embedding.row_storage import STORAGES
from veltair.compiler.features.description_file import load_description as load_features
from veltair.compiler.features.feature_description import FeatureDescription
from veltair.compiler.features.feature_model import join_features
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.graph.layer_spec import Point
from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError
from veltair.machine.isa import ISAS, cpu_features
from veltair.profiles.artifact.manifest import Storage
from veltair.profiles.records.tuning_records import RecordStore

FEATURES: list[dict[str, Any]] = [
    {"name": "t", "kind": "tokens", "separator": "\x02", "truncate": 5, "max_bytes": 512},
    {"name": "kept", "kind": "tokens", "separator": "\x02", "truncate": 7, "empty": "keep", "max_bytes": 512},
    {"name": "s", "kind": "string", "max_bytes": 512},
    {"name": "many", "kind": "int", "width": 4},
    {"name": "f", "kind": "float"},
]
KNOWN = ["a", "bc", "longer than eight", ""]
IDS: list[dict[str, Any]] = [
    {"feature": "t", "hash": 30, "first_id": 1, "combiner": "sequence"},
    {"name": "known", "feature": "kept", "vocabulary": KNOWN, "pad": 9, "combiner": "sequence"},
    {"name": "oov", "feature": "kept", "vocabulary": KNOWN, "oov": 3, "combiner": "sequence"},
    {"feature": "s", "hash": 100, "pad": -1},
    {"feature": "many", "identity": 9, "guards": [{"remove": (2, 8)}], "pad": 77, "combiner": "sequence"},
    {"feature": "f", "boundaries": [-0.5, 0.5], "first_id": 4},
    {"name": "length", "feature": "t", "length": True},
    {"name": "mask", "feature": "kept", "mask": True},
    {"name": "of ints", "feature": "many", "length": True},
]
ROWS: list[dict[str, Any]] = [
    {"feature": "t", "hash": 30, "table": "t19", "combiner": "sequence"},
    {"name": "known", "feature": "kept", "vocabulary": KNOWN, "table": "t8", "empty_row": 2, "combiner": "sequence"},
    {"feature": "many", "identity": 9, "table": "t8", "combiner": "sequence"},
    {"feature": "f"},
    {"name": "mask", "feature": "t", "mask": True},
]
POINT: Point = {"rows": 32, "columns": 4, "along": "rows", "ahead": 4}


def raw_features(batch: int) -> dict[str, Any]:
    chance = np.random.default_rng(batch)
    numbers = chance.standard_normal(batch).astype(np.float32)
    numbers[0] = np.nan
    return {
        "t": texts(chance, batch, b"\x02"),
        "kept": texts(chance, batch, b"\x02"),
        "s": [WORDS[i] for i in chance.integers(len(WORDS), size=batch)],
        "many": chance.integers(-1, 12, (batch, 4)),
        "f": numbers,
    }


@pytest.mark.parametrize("dtype", ["int64", "int32"])
def test_ids_in_their_order(dtype: str) -> None:
    description = make_description(FEATURES, IDS)
    code = CompiledColumns(description, POINT, dtype=dtype)
    for batch in (1, 17, 70):
        raw = raw_features(batch)
        found, expected = code(raw, batch), reference_inputs(description, raw)["x"]
        assert found.dtype == dtype and expected.dtype == np.int64
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_in_their_order(storage: Storage) -> None:
    description = make_description(FEATURES, ROWS, t19=(30, 19), t8=(9, 8))
    code = CompiledColumns(description, POINT, storage=storage)
    for batch in (1, 33):
        raw = raw_features(batch)
        expected = reference_inputs(description, raw, code.store.tables)["x"]
        np.testing.assert_allclose(code(raw, batch), expected, rtol=1e-5, atol=1e-6)


def test_what_a_sequence_is() -> None:
    """Written out: absent values take no place, dropped ones keep theirs, what is beyond the room is not read."""
    some: list[dict[str, Any]] = [
        {"feature": "t", "vocabulary": ["a", "b"], "first_id": 1, "combiner": "sequence"},
        {"name": "length", "feature": "t", "length": True},
        {"name": "mask", "feature": "t", "mask": True},
    ]
    code = CompiledColumns(make_description(FEATURES[:1], some), POINT, dtype="int64")
    raw = {"t": [b"b\x02\x02?\x02a", b"", b"a\x02a\x02a\x02a\x02b\x02b\x02b"]}
    np.testing.assert_array_equal(
        code(raw, 3),
        [
            [2, 0, 1, 0, 0, 3, 1, 1, 1, 0, 0],
            [0] * 11,
            [1, 1, 1, 1, 2, 5, 1, 1, 1, 1, 1],
        ],
    )


DESCRIPTION = """
features = [
    { name = "user", kind = "string" },
    { name = "clicks", kind = "tokens", separator = ";", truncate = 6 },
]
tables = [{ name = "words", rows = 50, dim = 3, seed = 1 }]
columns = [
    { feature = "user", hash = 40 },
    { feature = "clicks", hash = 29, first_id = 1, combiner = "sequence" },
    { name = "words", feature = "clicks", hash = 50, table = "words", combiner = "sequence" },
    { name = "count", feature = "clicks", length = true },
]
inputs = [
    { name = "user_id", columns = ["user"] }, { name = "history", columns = ["clicks"] },
    { name = "texts", columns = ["words"] }, { name = "count", columns = ["count"] },
]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of ids (n,), a sequence of ids and one of rows, and a length as a float."""
    path = tmp_path_factory.mktemp("sequences")
    chance = np.random.default_rng(0)
    weights: dict[str, NDArray[Any]] = {
        "users": chance.standard_normal((40, 4)).astype(np.float32),
        "items": chance.standard_normal((30, 4)).astype(np.float32),
        "axis": np.array([1]),
        "one": np.array([1.0], "f"),
        "widen": chance.standard_normal((3, 4)).astype(np.float32),
        "zero": np.array(0),
        "last": np.array([2]),
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["users", "user_id"], ["user"]),
        node("Gather", ["items", "history"], ["rows"]),
        node("Greater", ["history", "zero"], ["seen"]),
        node("Cast", ["seen"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["column"]),
        node("Mul", ["rows", "column"], ["masked"]),
        node("MatMul", ["texts", "widen"], ["wide"]),
        node("Add", ["masked", "wide"], ["both"]),
        node("ReduceSum", ["both", "axis"], ["summed"], keepdims=0),
        node("Max", ["count", "one"], ["some"]),
        node("Unsqueeze", ["some", "axis"], ["divisor"]),
        node("Div", ["summed", "divisor"], ["mean"]),
        node("Concat", ["user", "mean"], ["score"], axis=1),
    ]
    kinds = {"user_id": ["n"], "history": ["n", 6], "texts": ["n", 6, 3], "count": ["n"]}
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.INT64 if n in ("user_id", "history") else TensorProto.FLOAT, shape)
        for n, shape in kinds.items()
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 8])
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(v, n) for n, v in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path / "m.onnx")
    (path / "m.toml").write_text(DESCRIPTION)
    return path


def test_from_history_strings_to_the_score(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = RecordStore(ISAS["avx512"] & cpu_features(), user=folder / "records")
    out = folder / "out"
    found = compile_model(
        folder / "m.onnx", out, features=folder / "m.toml", trials=0, precision="fp32", max_batch=3, store=store
    )
    assert [port.name for port in found.manifest.inputs] == ["user", "clicks"]
    assert main(["verify", str(out), str(folder / "m.onnx"), "--features", str(folder / "m.toml"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["max_rel_err"] < 1e-5


def test_ids_are_measured_as_they_come(folder: Path) -> None:
    front = join_features(load_model(folder / "m.onnx", 3), load_features(folder / "m.toml"))
    assert front is not None
    ids = {name: span for name, span in front.bounds.items() if not name.endswith("/columns")}
    assert ids == {"user_id": (0, 39), "history": (0, 29)} and front.bounds["user_id/columns"] == (0, 39)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "hash = 40 }",
            "hash = 41 }",
            "'user_id': column 'user' gives ids from 0 to 40, node .* looks them up in 40 rows",
        ),
        ("first_id = 1, ", "first_id = 1, pad = -1, ", "'clicks' gives ids from -1 to 29"),
        ('table = "words", combiner', "combiner", r"its columns give int64 or int32 \[-1, 6\], the model .* float32"),
        ("truncate = 6", "truncate = 7", r"int64 or int32 \[-1, 7\], the model .* takes int64 \[-1, 6\]"),
        (", truncate = 6", "", "feature 'clicks' needs truncate: the length of a sequence"),
        ('first_id = 1, combiner = "sequence"', "first_id = 1", 'several ids a row are passed on as a "sequence"'),
        ('table = "words", comb', 'table = "words", pad = 3, comb', "pad, first_id: only ids have them"),
    ],
)
def test_sequences_that_do_not_fit_are_refused(folder: Path, old: str, new: str, says: str) -> None:
    assert old in DESCRIPTION
    (folder / "wrong.toml").write_text(DESCRIPTION.replace(old, new))
    with pytest.raises(ModelError, match=says):
        join_features(load_model(folder / "m.onnx", 3), load_features(folder / "wrong.toml"))


def test_a_description_of_sequences_is_one_kernel_a_layer(folder: Path) -> None:
    description: FeatureDescription = load_features(folder / "m.toml")
    front = join_features(load_model(folder / "m.onnx", 3), description)
    assert front is not None and [spec.outputs[0].dtype for spec in front.layers] == ["int64", "int64"] + 2 * [
        "float32"
    ]
