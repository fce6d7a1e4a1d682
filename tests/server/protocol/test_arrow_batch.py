"""Inputs in one Arrow record batch: what pyarrow writes is read, and no bytes lead outside of the request."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veltair.errors import RequestError
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol.arrow_batch import ARROW_INPUT
from veltair.server.protocol.infer_request import NamedTensor
from veltair.server.protocol.validation import InputValidator

PORTS = (
    Port("user", "int64", (-1, 1), low=0, high=99),
    Port("age", "float32", (-1, 1)),
    Port("shops", "int64", (-1, 3)),
    Port("picture", "float32", (-1, 2, 2)),
    Port("city", "string", (-1, 1)),
)
VALIDATOR = InputValidator("ranker", PORTS, max_batch=8)
ARRAYS = {
    "user": pa.array([1, 2]),
    "age": pa.array([1.5, float("nan")], pa.float32()),
    "shops": pa.array([[1, 2, 3], [4, 5, 6]], pa.list_(pa.int64(), 3)),
    "picture": pa.array([[0.0, 1, 2, 3], [4, 5, 6, 7]], pa.list_(pa.float32(), 4)),
    "city": pa.array([b"\xff\0", b""], pa.binary()),
}


def stream(arrays: dict[str, pa.Array], options: pa.ipc.IpcWriteOptions | None = None, batches: int = 1) -> bytes:
    batch, sink = pa.RecordBatch.from_pydict(arrays), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read(content: bytes, validator: InputValidator = VALIDATOR) -> dict[str, Any]:
    return dict(validator.validate([NamedTensor(ARROW_INPUT, "UINT8", (len(content),), content)]))


def test_the_columns_are_the_inputs() -> None:
    found = read(stream(ARRAYS))
    assert {name: value.tolist() for name, value in found.items() if name != "age"} == {
        "user": [[1], [2]],
        "shops": [[1, 2, 3], [4, 5, 6]],
        "picture": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]],
        "city": [b"\xff\0", b""],
    }
    np.testing.assert_array_equal(found["age"], np.array([[1.5], [np.nan]], np.float32))


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string()])
@given(texts=st.lists(st.text(max_size=9), min_size=1, max_size=8), numbers=st.data())
@settings(max_examples=15, deadline=None)
def test_what_pyarrow_writes_is_read(kind: pa.DataType, texts: list[str], numbers: st.DataObject) -> None:
    count = len(texts)
    ids = numbers.draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
    encoded = texts if pa.types.is_string(kind) or pa.types.is_large_string(kind) else [t.encode() for t in texts]
    whole = pa.RecordBatch.from_pydict(ARRAYS).take(pa.array([0] * count))
    arrays = dict(zip(whole.schema.names, whole.columns, strict=True))
    found = read(stream(arrays | {"city": pa.array(encoded, kind), "user": pa.array(ids, pa.int64())}))
    assert found["city"].tolist() == [text.encode() for text in texts]
    assert found["user"].ravel().tolist() == ids


def test_a_slice_and_all_types_of_numbers() -> None:
    for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float64"):
        values = np.arange(5).astype(name)
        validator = InputValidator("m", (Port("x", name, (-1, 1)),), max_batch=8)
        array = pa.array(values).slice(1, 3)
        assert read(stream({"x": array}), validator)["x"].ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"user": pa.array([1, None])}, "column 'user' has nulls"),
        ({"user": pa.array([1, 2], pa.int32())}, "'user' is INT64, got 'INT32'"),
        ({"user": pa.array([1, 100])}, "'user' has 100 at"),
        ({"user": pa.array(["a", "b"])}, "'user' is INT64, got 'BYTES'"),
        ({"city": pa.array(["a", "b"]).dictionary_encode()}, "column 'city' is dictionary-encoded"),
        ({"city": pa.array([True, False])}, "column 'city': expected whole numbers, floats, texts"),
        ({"city": pa.array([["a"] * 2] * 2, pa.list_(pa.string(), 2))}, r"'city' has shape \[1…8, 1\], got \[2, 2\]"),
        ({"shops": pa.array([[1], [2]], pa.list_(pa.int64(), 1))}, r"'shops' has shape \[1…8, 3\], got \[2, 1\]"),
        ({"shops": pa.array([[1, 2, 3], [4]])}, "column 'shops': expected whole numbers"),
        ({"other": pa.array([1, 2])}, "no input 'other'"),
        ({"city": None}, "input 'city' is missing"),
    ],
)
def test_columns_that_are_not_the_models(changed: dict[str, Any], message: str) -> None:
    arrays = {name: array for name, array in (ARRAYS | changed).items() if array is not None}
    with pytest.raises(RequestError, match=message):
        read(stream(arrays))


def test_streams_that_are_not_one_plain_batch() -> None:
    whole = stream(ARRAYS)
    wrong = [
        (b"", "ends too early"),
        (b"hello, this is no stream", "ends too early"),
        (stream(ARRAYS, batches=0), "ends too early"),
        (stream(ARRAYS, batches=2), "more follows"),
        (whole + b"\0" * 9, "more follows"),
        (stream({name: array.take(pa.array([0] * 9)) for name, array in ARRAYS.items()}), "got"),  # nine rows
    ]
    if pa.Codec.is_available("lz4"):
        wrong.append((stream(ARRAYS, pa.ipc.IpcWriteOptions(compression="lz4")), "not compressed"))
    for content, message in wrong:
        with pytest.raises(RequestError, match=message):
            read(content)
    for length in range(len(whole) - 8):  # the mark of the end may be missing
        with pytest.raises(RequestError):
            read(whole[:length])
    assert read(whole[:-8]).keys() == ARRAYS.keys()
    with pytest.raises(RequestError, match="is UINT8, got 'BYTES'"):
        VALIDATOR.validate([NamedTensor(ARROW_INPUT, "BYTES", (1,), [whole])])


@settings(max_examples=400, deadline=None)
@given(
    places=st.lists(st.integers(0, 1 << 16), min_size=1, max_size=4),
    values=st.lists(st.sampled_from([0, 1, 2, 4, 8, 0x7F, 0x80, 0xFE, 0xFF]), min_size=4, max_size=4),
)
def test_altered_bytes_are_refused_or_read_inside_of_the_request(places: list[int], values: list[int]) -> None:
    content = bytearray(stream(ARRAYS))
    for place, value in zip(places, values, strict=False):
        content[place % len(content)] = value
    try:
        found = read(bytes(content))
    except RequestError:
        return
    for value in found.values():
        if isinstance(value, Strings):
            assert value.checked("city", len(value)).size <= value.data.size <= len(content)
            value.tolist()
        else:
            assert value.nbytes <= len(content)


def test_every_word_may_be_the_largest_or_negative() -> None:
    whole = stream(ARRAYS)
    for place in range(0, len(whole) - 4, 2):
        for word in (b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\xfe\xff\xff\xff"):
            with suppress(RequestError):
                read(whole[:place] + word + whole[place + 4 :])


def test_a_model_may_have_an_input_of_that_name() -> None:
    own = InputValidator("m", (Port(ARROW_INPUT, "uint8", (-1,)),), max_batch=8)
    assert read(b"\1\2", own)[ARROW_INPUT].tolist() == [1, 2]


def test_rows_of_several_texts_are_fixed_size_lists() -> None:
    validator = InputValidator("m", (Port("tags", "string", (-1, 2)),), max_batch=8)
    for kind in (pa.string(), pa.binary(), pa.large_string(), pa.large_binary()):
        column = pa.array([["a", ""], ["b", "cc"], ["d", "e"]], pa.list_(kind, 2)).slice(1)
        assert read(stream({"tags": column}), validator)["tags"].tolist() == [b"b", b"cc", b"d", b"e"]
    for column, says in (
        (pa.array([["a", "b", "c"]], pa.list_(pa.string(), 3)), r"input 'tags' has shape .*, got \[1, 3\]"),
        (pa.array([["a", None]], pa.list_(pa.string(), 2)), "column 'tags' has nulls"),
        (pa.array([["a", "b"]]), "column 'tags': expected whole numbers, floats, texts, or fixed-size lists"),
    ):
        with pytest.raises(RequestError, match=says):
            read(stream({"tags": column}), validator)


@pytest.mark.parametrize("large", [False, True])
def test_offsets_of_texts_need_not_begin_at_0(large: bool) -> None:
    """As writers that do not copy have them of a slice."""
    whole = np.array([3, 4, 6], np.int64 if large else np.int32)
    kind = pa.large_binary() if large else pa.binary()
    column = pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(whole), pa.py_buffer(b"xxxabb")])
    content = stream(ARRAYS | {"city": column})
    assert read(content)["city"].tolist() == [b"a", b"bb"]
    begins = np.array([0, 1, 3], whole.dtype).tobytes()  # pyarrow copies
    assert begins in content
    moved = content.replace(begins, np.array([1, 2, 3], whole.dtype).tobytes())
    assert read(moved)["city"].tolist() == [b"b", b"b"]
