"""Raw features from files: every format gives the same, each row is read once, and faults are named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import veltair
from veltair.api.training.training_features import TrainingFeatures
from veltair.errors import ConfigError, DataError

DESCRIPTION = """
features = [
    { name = "user", kind = "int" },
    { name = "age", kind = "float" },
    { name = "items", kind = "tokens", separator = ";" },
]
tables = [{ name = "t", rows = 50, dim = 4, seed = 1 }]
columns = [
    { feature = "user", hash = 50, table = "t" },
    { feature = "age" },
    { feature = "items", hash = 50, table = "t" },
]
inputs = [{ name = "x", columns = ["user", "age", "items"] }]
"""
ROWS = 230


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> TrainingFeatures:
    path = tmp_path_factory.mktemp("files") / "features.toml"
    path.write_text(DESCRIPTION)
    return veltair.features(path)


def table() -> pa.Table:
    chance = np.random.default_rng(0)
    return pa.table(
        {
            "user": chance.integers(-1, 90, ROWS),
            "age": pa.array(chance.normal(40, 9, ROWS).astype(np.float32)),
            "items": [";".join(f"i{i}" for i in chance.integers(0, 99, n)) for n in chance.integers(0, 7, ROWS)],
            "click": chance.integers(0, 2, ROWS),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, whole = tmp_path_factory.mktemp("data"), table()
    pq.write_table(whole, path / "a.parquet", row_group_size=50)
    for name, write in (("file.arrow", pa.ipc.new_file), ("stream.arrow", pa.ipc.new_stream)):
        with pa.OSFile(str(path / name), "wb") as sink, write(sink, whole.schema) as writer:
            writer.write_table(whole, max_chunksize=40)
    pyarrow.csv.write_csv(whole, path / "a.csv")
    pyarrow.csv.write_csv(whole, path / "a.tsv", pyarrow.csv.WriteOptions(delimiter="\t"))
    return path


def joined(batches: Iterator[dict[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for batch in batches:
        for name, value in batch.items():
            rows = (
                [value.row(i).tolist() for i in range(len(value.offsets) - 1)]
                if isinstance(value, tuple)
                else value.tolist()
            )
            found.setdefault(name, []).extend(rows)
    return found


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow", "a.csv", "a.tsv"])
def test_every_format_gives_the_same_batches(columns: TrainingFeatures, folder: Path, name: str) -> None:
    expected = joined(iter([columns(table(), keep=("click",))]))
    assert joined(columns.batches(folder / name, rows=64, keep=("click",))) == expected
    sizes = [len(batch["click"]) for batch in columns.batches(folder / name, rows=64, keep=("click",), drop_last=True)]
    assert sizes == [64, 64, 64]


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow"])
def test_shards_deal_the_rows_among_them(columns: TrainingFeatures, folder: Path, name: str) -> None:
    paths, whole = [folder / name, folder / "a.csv"], joined(iter([columns(table())]))
    parts = [joined(columns.batches(paths, rows=32, shard=(part, 3))) for part in range(3)]
    rows = [row for part in parts for row in zip(*part.values(), strict=True)]
    assert sorted(rows) == sorted([*zip(*whole.values(), strict=True)] * 2)
    assert all(parts)


def altered(name: str, values: pa.Array) -> pa.Table:
    whole = table()
    return whole.set_column(whole.schema.get_field_index(name), name, values)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (table().drop_columns(["items"]), "row group 0: column 'items' is missing"),
        (
            altered("user", pa.array(["a"] * ROWS)),
            r"row group 0: column 'user': expected whole numbers \(int64\), got str",
        ),
        (altered("items", pa.array([1] * ROWS)), r"row group 0: column 'items': expected texts .*got int64"),
        (altered("age", pa.array([True] * ROWS)), r"row group 0: column 'age': expected numbers \(float32\), got bool"),
        (altered("user", pa.array([1] * 120 + [None] + [1] * 109)), "row group 2: column 'user': row 20 is null"),
        (altered("items", pa.array(["a"] * 199 + [None] + ["b"] * 30)), "row group 3: column 'items': row 49 is null"),
        (
            altered("click", pa.array(["a"] * ROWS)),
            "row group 0: column 'click': expected numbers, which are passed on",
        ),
    ],
)
def test_faults_name_the_row_group_and_the_column(
    columns: TrainingFeatures, tmp_path: Path, changed: pa.Table, message: str
) -> None:
    pq.write_table(changed, tmp_path / "bad.parquet", row_group_size=50)
    with pytest.raises(DataError, match=f"bad.parquet: {message}"):
        list(columns.batches(tmp_path / "bad.parquet", rows=64, keep=("click",)))


def test_files_that_are_none_or_cut_short(columns: TrainingFeatures, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.parquet: No such file"):
        list(columns.batches(tmp_path / "none.parquet"))
    with pytest.raises(ConfigError, match="expected a name that ends with"):
        list(columns.batches(tmp_path / "a.json"))
    with pytest.raises(ConfigError, match="at least one file"):
        list(columns.batches([]))
    for name in ("a.parquet", "file.arrow", "stream.arrow"):
        content = (folder / name).read_bytes()
        for length in (0, 3, len(content) // 2, len(content) - 9):
            cut = tmp_path / name
            cut.write_bytes(content[:length])
            try:
                read = joined(columns.batches(cut, rows=64))
            except DataError as error:
                assert str(error).startswith(str(cut))
            else:
                assert name == "stream.arrow" and len(read.get("user", [])) < ROWS  # a stream may end early
    (tmp_path / "bad.csv").write_text("user,age,items\n1,2,a\nx,2,b\n")
    with pytest.raises(DataError, match=r"bad.csv: .*x"):
        list(columns.batches(tmp_path / "bad.csv"))
    (tmp_path / "short.csv").write_text("user,age\n1,2\n")
    with pytest.raises(DataError, match=r"short.csv: .*items"):
        list(columns.batches(tmp_path / "short.csv"))


def read_back(batch: pa.RecordBatch, true: bytes, lie: bytes) -> pa.RecordBatch:
    """A batch through Arrow's stream format, in which some bytes were exchanged: readers do not check them."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = sink.getvalue().to_pybytes()
    assert content.count(true) == 1
    return pa.ipc.open_stream(content.replace(true, lie)).read_next_batch()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 1, 2, 99], "column 'items': .*99"),
        ([0, 2, 1, 3], "column 'items': offsets fall"),
        ([0, 99, 99, 3], "column 'items': offsets fall"),
        ([0, -7, 2, 3], "column 'items': offsets fall"),
        ([-5, 1, 2, 3], "column 'items': "),
        ([0, 1, 2, 1 << 30], "column 'items': "),
    ],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_buffers_that_lie_are_refused(
    columns: TrainingFeatures, kind: pa.DataType, offsets: list[int], message: str
) -> None:
    texts = pa.array(["a", "b", "c"], kind)
    arrays = {"user": pa.array([7, 7, 7]), "age": pa.array([1.0, 1.0, 1.0]), "items": texts}
    dtype = np.int32 if kind == pa.string() else np.int64
    true = np.arange(4, dtype=dtype).tobytes()
    batch = read_back(pa.RecordBatch.from_pydict(arrays), true, np.array(offsets, dtype).tobytes())
    with pytest.raises(DataError, match=message):
        columns(batch)


def test_batches_of_torch(columns: TrainingFeatures, folder: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: batches for torch are not tried")
    from torch.utils.data import DataLoader

    loader = DataLoader(columns.torch(folder / "a.parquet", rows=32, keep=("click",)), batch_size=None, num_workers=2)
    rows = [
        row.tolist()
        for batch in loader
        for row in torch.tensor_split(*batch["items"][:1], batch["items"].offsets[1:-1])
    ]
    whole = columns(table())["items"]
    assert sorted(rows) == sorted(whole.row(place).tolist() for place in range(ROWS))
    bag = torch.nn.EmbeddingBag(50, 4, include_last_offset=True)
    assert bag(*columns.collate(table().to_pylist())["items"]).shape == (ROWS, 4)


def test_batches_of_tensorflow(columns: TrainingFeatures, folder: Path) -> None:
    pytest.importorskip("tensorflow", reason="TensorFlow is not installed: batches for tf.data are not tried")
    batches = list(columns.tensorflow(folder / "a.parquet", rows=64, keep=("click",)))
    whole = columns(table())["items"]
    assert [row for batch in batches for row in batch["items"].to_list()] == [
        whole.row(i).tolist() for i in range(ROWS)
    ]
