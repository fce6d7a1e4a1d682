"""Raw features from Arrow's record batches, read where Arrow has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veltair.api.training.raw_columns import to_numbers
from veltair.errors import DataError
from veltair.profiles.artifact.strings import MOST_BYTES, Strings

if TYPE_CHECKING:
    from veltair.compiler.features.feature_description import Feature

TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
VIEWS = (pa.types.is_string_view, pa.types.is_binary_view)
LISTS = (pa.types.is_fixed_size_list, pa.types.is_list, pa.types.is_large_list)


def record_batch(given: Any) -> pa.RecordBatch:
    """A record batch, a table of any chunks, or what exports one by Arrow's C interface, as one record batch.

    Raises DataError for anything else.
    """
    try:
        if isinstance(given, pa.RecordBatch):
            return given
        if isinstance(given, pa.Table) or hasattr(given, "__arrow_c_stream__"):
            table = given if isinstance(given, pa.Table) else pa.table(given)
            parts = table.combine_chunks().to_batches()
            return parts[0] if len(parts) == 1 else pa.concat_batches(parts) if parts else _empty(table.schema)
        return pa.record_batch(given)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(f"expected an Arrow record batch: {error}") from None


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def check_columns(batch: pa.RecordBatch, features: Sequence[Feature], kept: Sequence[str], where: str) -> None:
    """Raises DataError, which begins with `where`, for a column that is missing, of a wrong type, or has nulls, or
    whose buffers are too short or lie about each other. What reads the batch afterwards reads nothing outside of it."""
    for feature in features:
        column, here = _checked_column(batch, feature.name, where)
        kind = _value_type(column)
        if feature.is_text:
            right, expected = any(test(kind) for test in (*TEXTS, *VIEWS)), "texts (string or binary)"
        elif feature.kind == "int":
            right, expected = pa.types.is_integer(kind), "whole numbers (int64)"
        else:
            right, expected = pa.types.is_integer(kind) or pa.types.is_floating(kind), "numbers (float32)"
        listed = any(test(column.type) for test in LISTS)
        if not right or (feature.width > 1 and not listed) or (listed and feature.kind == "tokens"):
            many = f"fixed_size_list of {feature.width} " if feature.width > 1 else ""
            raise DataError(f"{here}: expected {many}{expected}, got {column.type}")
    for name in kept:
        column, here = _checked_column(batch, name, where)
        kind = _value_type(column)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
            raise DataError(f"{here}: expected numbers, which are passed on, got {column.type}")


def arrow_columns(batch: pa.RecordBatch, features: Sequence[Feature], where: str = "") -> dict[str, Any]:
    """The features of a checked batch as kernels read them: int64 or float32 (rows, width), or `Strings`.

    Texts, int64 and float32 are read in Arrow's memory, which `batch` has to keep.
    """
    found = {}
    for feature in features:
        column, here = batch.column(feature.name), f"{where}column {feature.name!r}"
        found[feature.name] = _texts(column, feature, here) if feature.is_text else _numbers(column, feature, here)
    return found


def kept_column(batch: pa.RecordBatch, name: str, where: str = "") -> NDArray[Any]:
    """The numbers of a checked column that no kernel reads, (rows,), or (rows, width) of lists: a copy."""
    column, here = batch.column(name), f"{where}column {name!r}"
    if any(test(column.type) for test in LISTS):
        flat = column.flatten()
        width = len(flat) // max(len(column), 1)
        _check_lengths(column, width, here)
        return np.array(flat.to_numpy(zero_copy_only=False)).reshape(len(column), width)
    return np.array(column.to_numpy(zero_copy_only=False))


def join_batches(batches: Sequence[pa.RecordBatch], features: Sequence[Feature], kept: Sequence[str]) -> pa.RecordBatch:
    """Checked batches one after the other, whose columns may have another order and other types: a copy.

    Raises DataError where a kept column cannot take the type that it has in the first batch.
    """
    known = {feature.name: feature for feature in features}
    joined = {}
    for name in dict.fromkeys((*known, *kept)):
        parts = [batch.column(name) for batch in batches]
        if any(part.type != parts[0].type for part in parts):
            if name in known:
                parts = [_plain(part, known[name], f"column {name!r}") for part in parts]
            else:
                try:
                    parts = [part.cast(parts[0].type) for part in parts]
                except pa.ArrowException as error:
                    raise DataError(f"column {name!r}: {error}") from None
        joined[name] = pa.concat_arrays(parts)
    return pa.RecordBatch.from_pydict(joined)


def _plain(column: pa.Array, feature: Feature, where: str) -> pa.Array:
    """A column in the one type that all of its kind can take."""
    if feature.is_text:
        listed = any(test(column.type) for test in LISTS)
        flat = _flat(column, feature, where)
        flat = (flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat).cast(pa.large_binary())
        return pa.FixedSizeListArray.from_arrays(flat, feature.width) if listed or feature.width > 1 else flat
    return pa.FixedSizeListArray.from_arrays(pa.array(_numbers(column, feature, where).reshape(-1)), feature.width)


def _checked_column(batch: pa.RecordBatch, name: str, where: str) -> tuple[pa.Array, str]:
    """A column without nulls, and how messages name it."""
    here, places = f"{where}column {name!r}", batch.schema.get_all_field_indices(name)
    if len(places) != 1:
        raise DataError(f"{here} is missing" if not places else f"{here} is there {len(places)} times")
    column = batch.column(places[0])
    plain = any(test(column.type) for test in TEXTS)
    nested = any(test(column.type) for test in (*LISTS, *VIEWS, pa.types.is_dictionary))
    try:
        column.validate(full=nested)  # of texts this would ask for UTF-8
        if plain:
            _offsets(column, here)
    except pa.ArrowException as error:
        raise DataError(f"{here}: {error}") from None
    inner = column.flatten() if any(test(column.type) for test in LISTS) and not column.null_count else column
    for array in (column, inner):
        if array.null_count:
            row = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
            row = row if array is column else row * len(column) // len(inner)
            raise DataError(f"{here}: row {row} is null; nulls have no meaning here: fill them before")
    return column, here


def _value_type(column: pa.Array) -> pa.DataType:
    kind = column.type
    return kind.value_type if pa.types.is_dictionary(kind) or any(test(kind) for test in LISTS) else kind


def _numbers(column: pa.Array, feature: Feature, where: str) -> NDArray[Any]:
    rows = len(column)
    column = _flat(column, feature, where)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return to_numbers(column.to_numpy(zero_copy_only=True).reshape(rows, feature.width), feature, where)


def _flat(column: pa.Array, feature: Feature, where: str) -> pa.Array:
    """The values of all rows, one after the other. Raises DataError where a list has another length."""
    if not any(test(column.type) for test in LISTS):
        return column
    _check_lengths(column, feature.width, where)
    return column.flatten()


def _check_lengths(column: pa.Array, width: int, where: str) -> None:
    if pa.types.is_fixed_size_list(column.type):
        if column.type.list_size != width:
            raise DataError(f"{where}: expected {width} values a row, got {column.type}")
        return
    wrong = np.flatnonzero(np.diff(column.offsets.to_numpy()) != width)
    if wrong.size:
        raise DataError(f"{where}: row {wrong[0]}: expected {width} values, got {len(column[int(wrong[0])])}")


def _texts(column: pa.Array, feature: Feature, where: str) -> Strings:
    if (flat := _flat(column, feature, where)) is not column:
        column = flat
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if any(test(column.type) for test in VIEWS):
        column = column.cast(pa.large_binary())
    content, offsets = column.buffers()[2], _offsets(column, where)
    data = np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
    if offsets.dtype == np.int32:
        return Strings(data, offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first > MOST_BYTES:
        raise DataError(f"{where}: {last - first} bytes of text in a batch; at most {MOST_BYTES}: take fewer rows")
    return Strings(data[first:last], (offsets - first).astype(np.int32))


def _offsets(column: pa.Array, where: str) -> NDArray[Any]:
    """Where each text of a column begins, and the last one ends: int32, or int64 of large types."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    dtype = np.dtype("int64" if large else "int32")
    _, places, content = column.buffers()
    if not len(column):
        return np.zeros(1, dtype)
    offsets: NDArray[Any] = np.frombuffer(places, dtype)[column.offset : column.offset + len(column) + 1]
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        raise DataError(f"{where}: offsets fall at row {falls[0]}")
    if offsets[0] < 0 or offsets[-1] > (0 if content is None else content.size):
        size = 0 if content is None else content.size
        raise DataError(f"{where}: offsets from {offsets[0]} to {offsets[-1]} in {size} bytes of text")
    return offsets
