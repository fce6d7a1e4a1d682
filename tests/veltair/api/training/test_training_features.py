"""Columns in training: the ids are those that the served model looks up, whatever the rows come in."""

from __future__ import annotations

import multiprocessing
import pickle
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import onnx
import pyarrow as pa
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import veltair
from veltair.api.training.training_features import TrainingFeatures
from veltair.errors import ArtifactError, ConfigError, DataError, ModelError
from veltair.profiles.artifact.artifact_folder import COLUMNS, Artifact

DESCRIPTION = """
features = [
    { name = "age", kind = "float" },
    { name = "user", kind = "int" },
    { name = "shops", kind = "int", width = 3, missing = 0 },
    { name = "city", kind = "string" },
    { name = "kept", kind = "string", empty = "keep" },
    { name = "items", kind = "tokens", separator = ";", truncate = 4 },
    { name = "words", kind = "tokens", separator = " " },
    { name = "scores", kind = "dense", width = 2 },
]
tables = [
    { name = "ages", rows = 4, dim = 4, file = "4.npy" },
    { name = "few", rows = 7, dim = 7, file = "7.npy" },
    { name = "many", rows = 11, dim = 11, file = "11.npy" },
]
columns = [
    { feature = "age", boundaries = [18, 35, 65], table = "ages" },
    { feature = "user", hash = 11, table = "many" },
    { name = "user.known", feature = "user", vocabulary = [5, 7, -3], oov = 3, table = "few" },
    { feature = "shops", identity = 9, combiner = "sum", table = "few" },
    { feature = "city", hash = 7, table = "few", empty_row = 6 },
    { name = "city.kept", feature = "city", vocabulary = ["rome-a", "oslo-"], default = 5, table = "few", parts = [
        { feature = "city", case = "lower" }, { text = "-" }, { feature = "kept" } ] },
    { feature = "items", hash = 11, combiner = "sum", table = "many" },
    { feature = "words", vocabulary = ["a", "b", ""], combiner = "sum", guards = [{ remove = [0, 2] }], table = "few" },
    { feature = "scores" },
    { name = "items.ids", feature = "items", hash = 100, first_id = 1, combiner = "sequence" },
    { name = "items.length", feature = "items", length = true },
    { name = "words.number", feature = "words", number = true, combiner = "sum" },
]
inputs = [
    { name = "x", columns = ["age", "user", "user.known", "shops", "city", "city.kept", "items", "words", "scores",
        "words.number"] },
    { name = "ids", columns = ["items.ids", "items.length"] },
]
"""
# Columns that are served, too, and the rows of the table of each bag: a kernel of them all takes minutes to compile.
SERVED = {"age": 4, "user": 11, "city": 7, "items": 11}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A description whose tables are unit matrices, and a model that gives what the columns give it: counts of ids."""
    path = tmp_path_factory.mktemp("training")
    for rows in (4, 7, 11):
        np.save(path / f"{rows}.npy", np.eye(rows, dtype=np.float32))
    (path / "features.toml").write_text(DESCRIPTION)
    served = tomllib.loads(DESCRIPTION)
    x, ids = [*SERVED, "scores"], ["items.ids", "items.length"]
    served["inputs"] = [{"name": "x", "columns": x}, {"name": "ids", "columns": ids}]
    served["columns"] = [c for c in served["columns"] if c.get("name", c["feature"]) in (*x, *ids)]
    (path / "served.toml").write_text(tomli_w.dumps(served))
    width = sum(SERVED.values()) + 2
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["B", width]),
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", 5]),
    ]
    outputs = [
        helper.make_tensor_value_info("counts", TensorProto.FLOAT, ["B", width]),
        helper.make_tensor_value_info("floats", TensorProto.FLOAT, ["B", 5]),
    ]
    nodes = [helper.make_node("Neg", ["x"], ["counts"]), helper.make_node("Cast", ["ids"], ["floats"], to=1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path / "m.onnx")
    return path


@pytest.fixture(scope="module")
def artifact(folder: Path) -> Artifact:
    return veltair.compile(
        folder / "m.onnx", folder / "out", features=folder / "served.toml", trials=0, max_batch=4, precision="fp32"
    )


@pytest.fixture(scope="module")
def columns(folder: Path) -> TrainingFeatures:
    return veltair.features(folder / "features.toml")


def expected_bags(raw: dict[str, Sequence[Any]]) -> dict[str, list[list[int]]]:
    """The ids of each row by another Python implementation, with FarmHash by others."""

    def bucket(value: bytes, buckets: int) -> int:
        return int(farmhash.fingerprint64(value) % buckets)

    def known(value: Any, keys: Sequence[Any], unknown: int) -> int:
        return list(keys).index(value) if value in keys else unknown

    users = [[u for u in [user] if u != -1] for user in raw["user"]]
    tokens = [[t for t in items.split(b";") if t][:4] for items in raw["items"]]
    words = [[w for w in text.split(b" ") if w] for text in raw["words"]]
    joined = [city.lower() + b"-" + kept if city else None for city, kept in zip(raw["city"], raw["kept"], strict=True)]
    return {
        "age": [[sum(np.float32(age) >= edge for edge in (18, 35, 65)) if age == age else 3] for age in raw["age"]],
        "user": [[bucket(str(u).encode(), 11) for u in row] for row in users],
        "user.known": [[known(u, (5, 7, -3), 3 + bucket(str(u).encode(), 3)) for u in row] for row in users],
        "shops": [[s for s in row if s != 0 and 0 <= s < 7] for row in raw["shops"]],
        "city": [[bucket(city, 7)] if city else [6] for city in raw["city"]],
        "city.kept": [[] if text is None else [known(text, (b"rome-a", b"oslo-"), 5)] for text in joined],
        "items": [[bucket(token, 11) for token in row] for row in tokens],
        "words": [[i for w in row if (i := known(w, (b"a", b"b", b""), -1)) in (0, 1)] for row in words],
        "items.ids": [[bucket(token, 100) + 1 for token in row] + [0] * (4 - len(row)) for row in tokens],
        "items.length": [[len(row)] for row in tokens],
    }


def some_rows(count: int, seed: int = 0) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    texts = [b"", b"Rome", b"OSLO", b"\xff\0", b"a", b"b", "Zürich".encode(), b"a long name of sixteen or more bytes"]

    def joined(separator: bytes) -> list[bytes]:
        return [
            separator.join(texts[i] for i in chance.integers(len(texts), size=n)) for n in chance.integers(0, 9, count)
        ]

    ages = chance.normal(40, 25, count).astype(np.float32)
    ages[::7] = np.nan
    users = chance.integers(-3, 9, count)
    users[1::5] = -(1 << 63)
    return {
        "age": ages,
        "user": users,
        "shops": chance.integers(-1, 10, (count, 3)),
        "city": [texts[i] for i in chance.integers(len(texts), size=count)],
        "kept": [[b"", b"a"][i] for i in chance.integers(2, size=count)],
        "items": joined(b";"),
        "words": [b" ".join(text.split(b" ")) for text in joined(b" ")],
        "scores": chance.standard_normal((count, 2)).astype(np.float32),
    }


def rows_of(bag: Any) -> list[list[int]]:
    return [bag.row(place).tolist() for place in range(len(bag.offsets) - 1)]


def compare(found: dict[str, Any], raw: dict[str, Any]) -> None:
    for name, rows in expected_bags(raw).items():
        value = found[name]
        assert (rows_of(value) if isinstance(value, tuple) else value.tolist()) == rows, name


def test_ids_are_those_of_another_implementation(columns: TrainingFeatures) -> None:
    raw = some_rows(700)  # more than two tiles of rows
    found = columns(raw)
    compare(found, raw)
    np.testing.assert_array_equal(found["scores"], raw["scores"])
    assert [value.dtype for value in (found["user"].ids, found["items.ids"], found["scores"])] == [
        np.int64,
        np.int64,
        np.float32,
    ]
    assert np.from_dlpack(found["user"].ids).tolist() == found["user"].ids.tolist()


def test_the_served_model_looks_up_the_same_ids(columns: TrainingFeatures, artifact: Artifact) -> None:
    raw, own = some_rows(40, seed=1), veltair.features(artifact)
    wanted = {
        name: np.array(v, object) if isinstance(v, list) else v
        for name, v in raw.items()
        if name in {port.name for port in artifact.inputs}
    }
    with veltair.load(artifact) as model:
        answers = [
            model({name: value[first : first + 4].reshape(4, -1) for name, value in wanted.items()})
            for first in range(0, 40, 4)
        ]
    served = {name: np.concatenate([answer[name] for answer in answers]) for name in ("counts", "floats")}
    for found in (columns(raw), own(raw)):
        counts = [
            np.stack([np.bincount(np.array(row, np.int64), minlength=rows) for row in rows_of(found[name])])
            for name, rows in SERVED.items()
        ]
        np.testing.assert_array_equal(-served["counts"], np.concatenate([*counts, found["scores"]], axis=1))
        np.testing.assert_array_equal(served["floats"], np.concatenate([found["items.ids"], found["items.length"]], 1))


TEXT = st.lists(st.sampled_from([b"a", b"b", b";", b" ", b"Rome", b"\0", b"\xff", b"x" * 70]), max_size=12).map(
    b"".join
)


@settings(max_examples=25, deadline=None)
@given(data=st.data(), count=st.integers(0, 40))
def test_any_text_and_number(columns: TrainingFeatures, data: st.DataObject, count: int) -> None:
    ids = st.one_of(st.integers(-4, 12), st.integers(-(1 << 63), (1 << 63) - 1))
    raw = {
        name: data.draw(st.lists(TEXT, min_size=count, max_size=count)) for name in ("city", "kept", "items", "words")
    }
    raw["user"] = np.array(data.draw(st.lists(ids, min_size=count, max_size=count)), np.int64)
    raw["shops"] = np.array(data.draw(st.lists(ids, min_size=3 * count, max_size=3 * count)), np.int64).reshape(-1, 3)
    raw["age"] = np.array(data.draw(st.lists(st.floats(width=32), min_size=count, max_size=count)), np.float32)
    raw["scores"] = np.zeros((count, 2), np.float32)
    compare(columns(raw), raw)


def arrow_batch(raw: dict[str, Any], large: bool = False) -> pa.RecordBatch:
    """The same rows as Arrow has them, behind a row that a slice leaves out."""
    first = some_rows(1, seed=9)
    both = {name: [*first[name], *raw[name]] for name in raw}
    text = pa.large_binary() if large else pa.binary()
    arrays = {
        "age": pa.array(both["age"], pa.float64() if large else pa.float32()),
        "user": pa.array(both["user"], pa.int64()),
        "shops": pa.array([list(row) for row in both["shops"]], pa.list_(pa.int64(), -1 if large else 3)),
        "scores": pa.array([list(row) for row in both["scores"]], pa.list_(pa.float32(), 2)),
        **{name: pa.array(both[name], text) for name in ("city", "kept", "items", "words")},
    }
    return pa.RecordBatch.from_pydict(arrays).slice(1)


@pytest.mark.parametrize("large", [False, True])
def test_arrow_batches_give_the_same(columns: TrainingFeatures, large: bool) -> None:
    raw = some_rows(300, seed=2)
    batch = arrow_batch(raw, large)
    for given_batch in (batch, pa.Table.from_batches([batch.slice(0, 100), batch.slice(100)])):
        found = columns(given_batch)
        compare(found, raw)
        np.testing.assert_array_equal(found["scores"], raw["scores"])
    encoded = batch.set_column(batch.schema.get_field_index("city"), "city", batch["city"].dictionary_encode())
    compare(columns(encoded), raw)


def _ids_of(columns: TrainingFeatures, seed: int) -> list[int]:
    found: list[int] = columns(some_rows(300, seed))["items"].ids.tolist()
    return found


def test_forked_processes_and_pickles_give_the_same(columns: TrainingFeatures) -> None:
    expected = [_ids_of(columns, seed) for seed in range(4)]  # kernels have run before the fork
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.starmap(_ids_of, [(columns, seed) for seed in range(4)]) == expected
    assert _ids_of(pickle.loads(pickle.dumps(columns)), 0) == expected[0]  # noqa: S301


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"city": None}, "column 'city' is missing"),
        ({"user": [1.5, 2.0]}, "column 'user': expected int64, got float64"),
        ({"user": ["a", "b"]}, "column 'user': expected int64, got texts"),
        ({"user": np.array([1, 1 << 63], np.uint64)}, "column 'user': row 1: an id beyond"),
        ({"shops": [[1, 2], [3, 4]]}, r"column 'shops': expected \[rows, 3\], got \[2, 2\]"),
        ({"shops": [[1, 2, 3], [4]]}, "column 'shops': expected rows of 3 numbers"),
        ({"city": ["a", 3]}, "column 'city': row 1: expected a text, got int"),
        ({"city": np.zeros(2)}, "column 'city': expected one text a row, got float64"),
        ({"city": ["a", "b", "c"]}, "column 'kept': has 2 rows, the columns before it 3|column 'city': has 3 rows"),
    ],
)
def test_wrong_columns_are_named(columns: TrainingFeatures, changed: dict[str, Any], message: str) -> None:
    raw = {name: value for name, value in (some_rows(2) | changed).items() if value is not None}
    with pytest.raises(DataError, match=message):
        columns(raw)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 3, 2], "offsets fall at row 1"),
        ([-1, 0, 2], "offsets begin at -1"),
        ([0, 2, 9], "row 1 ends at byte 9 of 4"),
    ],
)
def test_offsets_that_lie_are_refused(columns: TrainingFeatures, offsets: list[int], message: str) -> None:
    from veltair.profiles.artifact.strings import Strings

    lie = Strings(np.frombuffer(b"a;b;", np.uint8), np.array(offsets, np.int32))
    with pytest.raises(DataError, match=f"column 'items': {message}"):
        columns(some_rows(2) | {"items": lie})


def test_sources_without_columns_are_refused(folder: Path, artifact: Artifact) -> None:
    with pytest.raises(ModelError, match="No such file"):
        veltair.features(folder / "none.toml")
    with pytest.raises(ArtifactError, match="no model artifact"):
        veltair.features(folder)
    assert (
        'name = "few"' in (artifact.path / COLUMNS).read_text() and "npy" not in (artifact.path / COLUMNS).read_text()
    )
    altered = (artifact.path / COLUMNS).read_bytes()
    try:
        (artifact.path / COLUMNS).write_bytes(altered.replace(b"hash = 7", b"hash = 8"))
        with pytest.raises(ArtifactError, match="truncated or altered"):
            veltair.features(artifact.path)
    finally:
        (artifact.path / COLUMNS).write_bytes(altered)


def test_kept_columns(columns: TrainingFeatures) -> None:
    raw = some_rows(5)
    clicks = np.array([0, 1, 1, 0, 1])
    assert columns(raw | {"click": clicks}, keep=("click",))["click"].tolist() == clicks.tolist()
    with pytest.raises(ConfigError, match="keep: 'city' is the name of a feature column"):
        columns(raw, keep=("city",))
    with pytest.raises(DataError, match="column 'click' is missing"):
        columns(raw, keep=("click",))
