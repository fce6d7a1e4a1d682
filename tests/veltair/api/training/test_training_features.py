"""Columns in training: the ids are those that the served model looks up, whatever the rows come in."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import pyarrow as pa
import pytest
import training_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from training_rows import SERVED, some_rows

import veltair
from veltair.api.training.training_features import TrainingFeatures
from veltair.profiles.artifact.artifact_folder import Artifact


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


def rows_of(bag: Any) -> list[list[int]]:
    return [bag.row(place).tolist() for place in range(len(bag.offsets) - 1)]


def compare(found: dict[str, Any], raw: dict[str, Any]) -> None:
    for name, rows in expected_bags(raw).items():
        value = found[name]
        assert (rows_of(value) if isinstance(value, tuple) else value.tolist()) == rows, name


def test_ids_are_those_of_another_implementation(every_column: TrainingFeatures) -> None:
    raw = some_rows(700)  # more than two tiles of rows
    found = every_column(raw)
    compare(found, raw)
    np.testing.assert_array_equal(found["scores"], raw["scores"])
    assert [value.dtype for value in (found["user"].ids, found["items.ids"], found["scores"])] == [
        np.int64,
        np.int64,
        np.float32,
    ]
    assert np.from_dlpack(found["user"].ids).tolist() == found["user"].ids.tolist()


def test_the_served_model_looks_up_the_same_ids(every_column: TrainingFeatures, artifact: Artifact) -> None:
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
    for found in (every_column(raw), own(raw)):
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
def test_any_text_and_number(every_column: TrainingFeatures, data: st.DataObject, count: int) -> None:
    ids = st.one_of(st.integers(-4, 12), st.integers(-(1 << 63), (1 << 63) - 1))
    raw = {
        name: data.draw(st.lists(TEXT, min_size=count, max_size=count)) for name in ("city", "kept", "items", "words")
    }
    raw["user"] = np.array(data.draw(st.lists(ids, min_size=count, max_size=count)), np.int64)
    raw["shops"] = np.array(data.draw(st.lists(ids, min_size=3 * count, max_size=3 * count)), np.int64).reshape(-1, 3)
    raw["age"] = np.array(data.draw(st.lists(st.floats(width=32), min_size=count, max_size=count)), np.float32)
    raw["scores"] = np.zeros((count, 2), np.float32)
    compare(every_column(raw), raw)


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
def test_arrow_batches_give_the_same(every_column: TrainingFeatures, large: bool) -> None:
    raw = some_rows(300, seed=2)
    batch = arrow_batch(raw, large)
    for given_batch in (batch, pa.Table.from_batches([batch.slice(0, 100), batch.slice(100)])):
        found = every_column(given_batch)
        compare(found, raw)
        np.testing.assert_array_equal(found["scores"], raw["scores"])
    encoded = batch.set_column(batch.schema.get_field_index("city"), "city", batch["city"].dictionary_encode())
    compare(every_column(encoded), raw)


FORKS = """
import json, multiprocessing, pathlib, pickle, sys
sys.path.insert(0, sys.argv[2])
from training_rows import some_rows

columns = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())

def ids_of(seed):
    return columns(some_rows(300, seed))["items"].ids.tolist()

before = [ids_of(seed) for seed in range(4)]  # kernels have run, on several threads, before the fork
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(json.dumps([before, pool.map(ids_of, range(4))]))
"""


def test_forked_processes_and_pickles_give_the_same(every_column: TrainingFeatures, tmp_path: Path) -> None:
    """In a process of its own: that of the tests has threads of other libraries, with which nobody can fork."""
    (tmp_path / "columns").write_bytes(pickle.dumps(every_column))
    command = [sys.executable, "-c", FORKS, str(tmp_path / "columns"), str(Path(training_rows.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    before, forked = json.loads(done.stdout)
    assert forked == before == [every_column(some_rows(300, seed))["items"].ids.tolist() for seed in range(4)]
