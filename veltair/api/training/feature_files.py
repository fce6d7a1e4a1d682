"""Raw features from files, in record batches of equal size: Parquet, Arrow's own formats, CSV and TSV.

A file is read in *pieces*: row groups of Parquet, record batches of Arrow, and the whole of a text. Workers take pieces
in turn, so that each row is read by one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet as pq

from veltair.api.training.arrow_columns import check_columns, join_batches
from veltair.errors import ConfigError, DataError

if TYPE_CHECKING:
    from veltair.compiler.features.feature_description import Feature

FORMATS = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".csv", ".tsv"), "text"),
}
SEPARATORS = {".csv": ",", ".tsv": "\t"}
MOST_ROWS = 1 << 16  # of a row group that are in memory at once


@dataclass(frozen=True, slots=True)
class FeatureFiles:
    """Files with raw features. ::

    files = FeatureFiles([Path("day0.parquet")], features, keep=("click",))
    for where, batch in files.batches(4096):
        ...
    """

    paths: Sequence[Path]
    features: Sequence[Feature]
    keep: Sequence[str] = ()  # columns besides the features'

    def __post_init__(self) -> None:
        if not self.paths:
            raise ConfigError("expected at least one file")
        for path in self.paths:
            if path.suffix not in FORMATS:
                raise ConfigError(f"{path}: expected a name that ends with one of {', '.join(FORMATS)}")

    def batches(
        self, rows: int, shard: tuple[int, int] = (0, 1), drop_last: bool = False
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Record batches of so many rows, the last one of what is left, and where each begins, for messages.

        shard: which part of how many; pieces are dealt in turn.

        Raises DataError for a file or column that is not as expected, naming file, row group and column.
        """
        part, parts = shard
        if not 0 <= part < parts or rows < 1:
            raise ConfigError(f"expected a batch of at least 1 row and a shard below {parts}, got {rows} and {part}")
        waiting: list[pa.RecordBatch] = []
        first, have = "", 0
        for where, batch in self._checked(part, parts):
            while batch.num_rows:
                first = first if have else where
                taken = batch.slice(0, rows - have)
                waiting, have, batch = [*waiting, taken], have + taken.num_rows, batch.slice(taken.num_rows)
                if have == rows:
                    yield first, self._joined(waiting)
                    waiting, have = [], 0
        if waiting and not drop_last:
            yield first, self._joined(waiting)

    def _joined(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return batches[0] if len(batches) == 1 else join_batches(batches, self.features, self.keep)

    def _checked(self, part: int, parts: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The record batches of every piece of a shard, checked."""
        number = 0
        for path in self.paths:
            where = f"{path}: "
            try:
                for where, read in _PIECES[FORMATS[path.suffix]](path, self):
                    if number % parts == part:
                        for batch in read():
                            check_columns(batch, self.features, self.keep, where)
                            yield where, batch
                    number += 1
            except (OSError, EOFError, KeyError, pa.ArrowException) as error:
                raise DataError(f"{where}{_reason(error)}") from None

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return list(dict.fromkeys([*(feature.name for feature in self.features), *self.keep]))


Piece: TypeAlias = tuple[str, Callable[[], Iterable[pa.RecordBatch]]]  # for messages; reads it


def _parquet_pieces(path: Path, files: FeatureFiles) -> Iterator[Piece]:
    with pq.ParquetFile(path, memory_map=True) as file:
        known = [name for name in files.names if name in file.schema_arrow.names]  # what is missing is said later
        for group in range(file.num_row_groups):
            read = partial(file.iter_batches, MOST_ROWS, row_groups=[group], columns=known, use_threads=False)
            yield f"{path}: row group {group}: ", read


def _arrow_pieces(path: Path, files: FeatureFiles) -> Iterator[Piece]:
    with pa.memory_map(str(path)) as source:
        try:
            file = pa.ipc.open_file(source)
        except pa.ArrowInvalid:  # no footer: a stream
            source.seek(0)
            for number, batch in enumerate(pa.ipc.open_stream(source)):
                yield f"{path}: record batch {number}: ", partial(iter, [batch])
            return
        for number in range(file.num_record_batches):
            yield f"{path}: record batch {number}: ", partial(_read_one, file, number)


def _read_one(file: pa.ipc.RecordBatchFileReader, number: int) -> Iterator[pa.RecordBatch]:
    yield file.get_batch(number)


def _text_pieces(path: Path, files: FeatureFiles) -> Iterator[Piece]:
    wide = next((feature.name for feature in files.features if feature.width > 1), None)
    if wide is not None:
        raise DataError(f"{path}: column {wide!r}: several values a row do not fit into a field; take Parquet")
    types = {"int": pa.int64(), "float": pa.float32(), "dense": pa.float32()}
    options = pyarrow.csv.ConvertOptions(
        column_types={feature.name: types.get(feature.kind, pa.binary()) for feature in files.features},
        include_columns=files.names,
        null_values=[],
        strings_can_be_null=False,
    )
    yield (
        f"{path}: ",
        partial(
            pyarrow.csv.open_csv,
            path,
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(delimiter=SEPARATORS[path.suffix]),
            convert_options=options,
        ),
    )


_PIECES = {"parquet": _parquet_pieces, "arrow": _arrow_pieces, "text": _text_pieces}


def _reason(error: BaseException) -> str:
    """What Arrow or the system says, in one line."""
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).strip("'\" ").split()) or type(error).__name__
