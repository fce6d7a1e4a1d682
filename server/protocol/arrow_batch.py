"""A query's inputs as one Arrow record batch: Arrow's stream format, in one tensor.

The stream has a schema, one record batch, and possibly the mark of its end. What a schema says is kept for the requests
that have the same one, so that of a record batch only its numbers are read: where each buffer begins and ends. Columns
are views of the request's bytes. (Arrow, "Columnar Format", IPC streaming format; Schema.fbs, Message.fbs.)
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from veltair.errors import RequestError, quoted
from veltair.profiles.artifact.strings import MOST_BYTES, Strings
from veltair.server.protocol.datatypes import datatype_name
from veltair.server.protocol.flatbuffer import FlatTable
from veltair.server.protocol.infer_request import NamedTensor
from veltair.server.protocol.request_bounds import MAX_TENSORS

ARROW_INPUT = "veltair_arrow"  # name of the tensor that holds a record batch
CONTINUES = b"\xff\xff\xff\xff"  # before each message
SCHEMA, RECORD_BATCH = 1, 3  # kinds of messages
KEPT_SCHEMAS, LARGEST_KEPT = 16, 1 << 18  # bytes
LONGEST_NAME = 1024  # bytes, of a column
INT, FLOAT, BINARY, UTF8, FIXED_SIZE_LIST, LARGE_BINARY, LARGE_UTF8 = 2, 3, 4, 5, 16, 19, 20  # types of a field
FLOATS = ("float16", "float32", "float64")
TEXTS = {BINARY: "int32", UTF8: "int32", LARGE_BINARY: "int64", LARGE_UTF8: "int64"}  # their offsets


class _Column(NamedTuple):
    name: str
    dtype: str  # numpy name; of texts that of their offsets
    is_text: bool
    width: int  # values of a row; 0 where the column is no list
    datatype: str
    item_bytes: int  # of a value, or of an offset
    node: int  # the first of its nodes and buffers
    buffer: int


def read_record_batch(data: memoryview) -> list[NamedTensor]:
    """The columns of a record batch as inputs: numbers and texts (rows, width), the latter as `Strings`.

    Raises RequestError for what is no such stream, for nulls, compressed and dictionary-encoded columns, and for
    buffers that are not where they are said to be. Offsets of texts are checked by whoever takes the strings.
    """
    try:
        kind, schema, _, rest = _message(data)
        if kind != SCHEMA:
            raise RequestError("the first message is no schema")
        raw = bytes(schema)
        columns = _kept_columns(raw) if len(raw) <= LARGEST_KEPT else _columns(raw)
        kind, header, body, rest = _message(rest)
        if kind != RECORD_BATCH:
            raise RequestError("the second message is no record batch")
        if len(rest) > 8 or bytes(rest) not in (b"", CONTINUES + bytes(4), bytes(4)):
            raise RequestError("more follows behind the record batch")
        return _tensors(columns, FlatTable.root(header).table(2), body)
    except RequestError as error:
        raise RequestError(f"input {ARROW_INPUT!r}: {error}") from None


def _message(data: memoryview) -> tuple[int, memoryview, memoryview, memoryview]:
    """The kind of the first message, its metadata, its body, and what follows."""
    first = 8 if bytes(data[:4]) == CONTINUES else 4
    size = int.from_bytes(data[first - 4 : first], "little")
    if size <= 0 or first + size > len(data):
        raise RequestError("expected a message of Arrow's stream format; the stream ends too early")
    metadata = data[first : first + size]
    message, behind = FlatTable.root(metadata), data[first + size :]
    length = message.number(3, "<q")
    if not 0 <= length <= len(behind):
        raise RequestError(f"a body of {length} bytes; {len(behind)} are there")
    return message.number(1, "<B"), metadata, behind[:length], behind[length:]


@lru_cache(KEPT_SCHEMAS)
def _kept_columns(metadata: bytes) -> tuple[_Column, ...]:
    return _columns(metadata)


def _columns(metadata: bytes) -> tuple[_Column, ...]:
    """The columns that the message of a schema declares."""
    schema = FlatTable.root(metadata).table(2)
    if schema is None or schema.number(0, "<h"):
        raise RequestError("expected a schema of little-endian numbers")
    found, node, buffer = list[_Column](), 0, 0
    for field in schema.tables(1, MAX_TENSORS):
        name, kind, width = field.text(0, LONGEST_NAME), field.number(2, "<B"), 0
        value, nested = field, kind == FIXED_SIZE_LIST
        if nested:
            size, children = field.table(3), field.tables(5, 1)
            width = size.number(0, "<i") if size is not None else 0
            if len(children) != 1 or width < 1:
                raise RequestError(f"column {quoted(name)}: expected a list of at least one value a row")
            (value,) = children
            kind = value.number(2, "<B")
        if field.table(4) is not None or value.table(4) is not None:
            raise RequestError(f"column {quoted(name)} is dictionary-encoded; expected its values")
        dtype = TEXTS.get(kind, "")
        is_text = bool(dtype)
        dtype = dtype or _number_type(kind, value.table(3))
        if not dtype:
            raise RequestError(
                f"column {quoted(name)}: expected whole numbers, floats, texts, or fixed-size lists of them"
            )
        datatype = "BYTES" if is_text else datatype_name(dtype)
        found.append(_Column(name, dtype, is_text, width, datatype, np.dtype(dtype).itemsize, node, buffer))
        node, buffer = node + 1 + nested, buffer + _buffers_of(found[-1])
    return tuple(found)


def _buffers_of(column: _Column) -> int:
    """Buffers of a column: which values are there, offsets of texts, values; of a list, which rows are there."""
    return (column.width > 0) + (3 if column.is_text else 2)


def _number_type(kind: int, details: FlatTable | None) -> str:
    """numpy's name of a type of numbers; "" for any other."""
    if details is None:
        return ""
    if kind == INT and (bits := details.number(0, "<i")) in (8, 16, 32, 64):
        return f"{'' if details.number(1, '<B') else 'u'}int{bits}"
    if kind == FLOAT and 0 <= (precision := details.number(0, "<h")) < len(FLOATS):
        return FLOATS[precision]
    return ""


def _tensors(columns: tuple[_Column, ...], batch: FlatTable | None, body: memoryview) -> list[NamedTensor]:
    if batch is None or batch.table(3) is not None:
        raise RequestError("expected a record batch that is not compressed")
    rows, nodes, buffers = batch.number(0, "<q"), batch.pairs(1), batch.pairs(2)
    last = columns[-1] if columns else None
    nested = last is not None and last.width > 0
    most = (last.node + 1 + nested, last.buffer + _buffers_of(last)) if last else (0, 0)
    if (len(nodes), len(buffers)) != most or rows < 0:
        raise RequestError(f"{len(nodes)} nodes and {len(buffers)} buffers; its columns have {most[0]} and {most[1]}")
    begins, sizes = buffers[:, 0], buffers[:, 1]
    if len(buffers) and not ((begins >= 0) & (sizes >= 0) & (sizes <= len(body)) & (begins <= len(body) - sizes)).all():
        raise RequestError("a buffer passes the end of the record batch")
    if nodes[:, 1].any():
        at = int(nodes[:, 1].argmax())
        column = [each for each in columns if each.node <= at][-1]
        raise RequestError(f"column {quoted(column.name)} has nulls")
    spans, counts = buffers.tolist(), nodes[:, 0].tolist()
    return [_tensor(column, rows, counts[column.node], spans, body) for column in columns]


def _tensor(column: _Column, rows: int, count: int, spans: list[list[int]], body: memoryview) -> NamedTensor:
    name, dtype, is_text, width, datatype, item_bytes, _, first = column
    if count != rows:
        raise RequestError(f"column {quoted(name)} has {count} rows, the record batch {rows}")
    place = first + (2 if width else 1)
    begin, size = spans[place]
    width = width or 1
    needed = (rows * width + 1 if is_text else rows * width) * item_bytes
    if size < needed:
        raise RequestError(f"column {quoted(name)}: a buffer of {size} bytes; {needed} are needed")
    values = body[begin : begin + needed]
    if is_text:
        offsets = np.frombuffer(values, dtype)
        start, length = spans[place + 1]
        data = np.frombuffer(body[start : start + length], np.uint8)
        if 0 < (skipped := int(offsets[0])) <= length:  # a slice of a longer column
            data, offsets = data[skipped:], offsets - offsets.dtype.type(skipped)
        if dtype == "int64":
            if len(offsets) and (int(offsets.max()) > MOST_BYTES or int(offsets.min()) < 0):
                raise RequestError(f"column {quoted(name)}: offsets beyond {MOST_BYTES} bytes")
            offsets = offsets.astype(np.int32)
        return NamedTensor(name, datatype, (rows, width), Strings(data, offsets))
    return NamedTensor(name, datatype, (rows, width), values)
