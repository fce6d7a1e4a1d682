"""Malformed HTTP bodies: every one is a request or a RequestError."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from veltair.errors import RequestError, UnsupportedError
from veltair.server.protocol.datatypes import BYTES, DTYPES
from veltair.server.protocol.http_codec import decode_request, encode_request
from veltair.server.protocol.infer_request import TensorLocation
from veltair.server.protocol.tensor_values import tensor_bytes, tensor_values


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def fp32(data: Any, shape: Any = (1, 2)) -> dict[str, Any]:
    return {"name": "x", "shape": list(shape), "datatype": "FP32", "data": data}


def sized(size: Any, **more: Any) -> dict[str, Any]:
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    return {**tensor, **more}


MALFORMED = {
    "nothing": (b"", None, "truncated"),
    "no JSON": (b"hello", None, "malformed"),
    "cut": (body(fp32([1, 2]))[:-4], None, "truncated"),
    "not an object": (b"[]", None, "object"),
    "no inputs": (b"{}", None, "inputs"),
    "inputs is no list": (b'{"inputs": 3}', None, "array"),
    "no name": (body({"shape": [1], "datatype": "FP32", "data": [1]}), None, "name"),
    "no shape": (body({"name": "x", "datatype": "FP32", "data": [1]}), None, "shape"),
    "no datatype": (body({"name": "x", "shape": [1], "data": [1]}), None, "datatype"),
    "no data": (body({"name": "x", "shape": [1], "datatype": "FP32"}), None, "neither data nor"),
    "null data": (body(fp32(None)), None, "array"),
    "data is a number": (body(fp32(3)), None, "array"),
    "strings for floats": (body(fp32(["1", "2"])), None, "expected `float`"),
    "booleans for floats": (body(fp32([True, False])), None, "expected `float`"),
    "nulls": (body(fp32([None, 1])), None, "expected `float`"),
    "ragged": (body(fp32([[1, 2], [3]], (2, 2))), None, "differ in length"),
    "mixed depth": (body(fp32([[1], 2], (1, 2))), None, "expected `array`"),
    "nested otherwise": (body(fp32([[1], [2]], (1, 2))), None, "nested as"),
    "too deep": (body({**fp32([1]), "data": json.loads("[" * 40 + "1" + "]" * 40)}), None, "deeper than"),
    "a JSON bomb": (b'{"inputs":' + b"[" * 100_000, None, "too deeply|array|object"),
    "a JSON bomb in data": (b'{"inputs":[{"data":' + b"[" * 100_000, None, "too deeply"),
    "too few elements": (body(fp32([1])), None, "takes 2 elements, got 1"),
    "too many elements": (body(fp32([1, 2, 3])), None, "takes 2 elements, got 3"),
    "too large for FP32": (body(fp32([1e39, 0])), None, "does not fit FP32"),
    "too large for anything": (body(fp32([10**400, 0])), None, "out of range|does not fit"),
    "fractional shape": (body(fp32([1], [1.5])), None, "expected `int`"),
    "negative shape": (body(fp32([1, 2], [-1, -2])), None, "negative"),
    "huge shape": (body(fp32([1, 2], [2**62, 2**62, 2**62])), None, "takes"),
    "shape of zero elements": (body(fp32([1], [0])), None, "takes 0 elements"),
    "unknown datatype": (body({**fp32([1, 2]), "datatype": "FP33"}), None, "unknown datatype 'FP33'"),
    "UINT8 of 256": (body({**fp32([256, 0]), "datatype": "UINT8"}), None, "does not fit UINT8"),
    "UINT8 of -1": (body({**fp32([-1, 0]), "datatype": "UINT8"}), None, "does not fit UINT8"),
    "INT64 of 2**63": (body({**fp32([2**63, 0]), "datatype": "INT64"}), None, "does not fit INT64"),
    "fractions for INT64": (body({**fp32([1.5, 0]), "datatype": "INT64"}), None, "expected `int`"),
    "numbers for BYTES": (body({**fp32([1, 2]), "datatype": "BYTES"}), None, "expected `str`"),
    "ragged BYTES": (
        body({**fp32([["a"], ["b", "c", "d"]], (2, 2)), "datatype": "BYTES"}),
        None,
        "differ in length",
    ),
    "BYTES nested otherwise": (
        body({**fp32([["a"], ["b"]], (1, 2)), "datatype": "BYTES"}),
        None,
        r"nested as \[2, 1\]",
    ),
    "too few strings": (body({**fp32(["a"]), "datatype": "BYTES"}), None, "expected 2 strings, got 1"),
    "half a character": (body({**fp32(["a", "PUT"]), "datatype": "BYTES"}).replace(b"PUT", b"\xc3"), None, "utf-8"),
    "a lone surrogate": (
        body({**fp32(["a", "PUT and more"]), "datatype": "BYTES"}).replace(b"PUT", b"\\ud800"),
        None,
        "surrogate|unicode|escape",
    ),
    "parameters nested": (body(fp32([1, 2]), parameters={"a": {}}), None, "parameters"),
    "broken UTF-8": (b'{"inputs": [], "id": "\xff"}', None, "utf-8"),
    "header past the body": (body(fp32([1, 2])), 10_000, "10000"),
    "negative header": (body(fp32([1, 2])), -1, "-1"),
    "bytes left over": (body(fp32([1, 2])) + b"abcd", len(body(fp32([1, 2]))), "4 bytes follow"),
    "bytes missing": (body(sized(8)) + b"abcd", len(body(sized(8))), "4 bytes are left"),
    "size too small": (body(sized(4)) + b"abcd", len(body(sized(4))), "takes 8 bytes, got 4"),
    "size huge": (body(sized(2**70)), len(body(sized(2**70))), "bytes are left"),
    "size negative": (body(sized(-4)), len(body(sized(-4))), "count of bytes"),
    "size a boolean": (body(sized(True)), len(body(sized(True))), "count of bytes"),
    "size a text": (body(sized("8")), len(body(sized("8"))), "count of bytes"),
    "data twice": (body(sized(0, data=[1, 2])), len(body(sized(0, data=[1, 2]))), "both"),
    **{
        name: (body(sized(len(tail), datatype="BYTES")) + tail, len(body(sized(len(tail), datatype="BYTES"))), message)
        for name, tail, message in [
            ("a string past the end", b"\1\0\0\0a\2\0\0\0b", "2 bytes runs past the end of the data, 1 bytes on"),
            ("a huge length", b"\1\0\0\0a\xff\xff\xff\xffb", "4294967295 bytes runs past"),
            ("half a string length", b"\0\0\0\0\0\0\0\0abc", "3 bytes left where a 4-byte string length"),
            ("one string of two", b"\5\0\0\0abcde", "expected 2 strings, got 1"),
            ("three strings of two", b"\0\0\0\0" * 3, "expected 2 strings, got 3"),
            ("too little for two lengths", b"\0\0\0\0", "2 strings take at least 8 bytes, got 4"),
        ]
    },
    "a BOOL of 7": (
        body(sized(2, datatype="BOOL")) + b"\x00\x07",
        len(body(sized(2, datatype="BOOL"))),
        "0 or 1",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed(case: str) -> None:
    text, header_bytes, message = MALFORMED[case]
    with pytest.raises(RequestError, match=f"(?i){message}"):
        for tensor in decode_request(text, header_bytes).inputs:
            tensor_values(tensor)


@pytest.mark.parametrize("key", ["sequence_id", "sequence_start", "classification"])
def test_what_is_not_served_is_said(key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        decode_request(body(fp32([1, 2]), parameters={key: 1}))
    with pytest.raises(UnsupportedError, match=key):
        decode_request(body({**fp32([1, 2]), "parameters": {key: "r"}}))


VALID = body(sized(8), fp32([[1, 2]]), id="a", outputs=[{"name": "y"}])


def touch(text: bytes, header_bytes: int | None) -> None:
    """Decoding must end in a request whose tensors can be read, or in a RequestError; anything else fails."""
    try:
        request = decode_request(text, header_bytes)
        for tensor in request.inputs:
            if not isinstance(tensor.data, TensorLocation):
                tensor_values(tensor)
    except RequestError:
        return
    message = encode_request(request)
    again = decode_request(message.body, message.header_bytes)
    for before, after in zip(request.inputs, again.inputs, strict=True):
        if isinstance(before.data, TensorLocation):
            assert before == after
        else:
            assert tensor_bytes(tensor_values(before)) == tensor_bytes(tensor_values(after))


def in_memory(**parameters: object) -> dict[str, object]:
    return {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"shared_memory_region": 1, "shared_memory_byte_size": 8}, "name of a region"),
        ({"shared_memory_byte_size": 8}, "name of a region"),
        ({"shared_memory_region": "r"}, "shared_memory_byte_size is a count of bytes"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": -1}, "shared_memory_byte_size is a count of bytes"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": True}, "shared_memory_byte_size is a count"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": "0"}, "offset is a count"),
        ({"shared_memory_region": "r", "shared_memory_byte_size": 8, "binary_data_size": 8}, "both data and a place"),
    ],
)
def test_places_that_are_none(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        decode_request(body(in_memory(**parameters)))


@given(st.binary(max_size=200), st.none() | st.integers(-2, 220))
@example(VALID, None)
@example(VALID + b"abcdefgh", len(VALID))
def test_any_bytes_are_a_request_or_a_request_error(text: bytes, header_bytes: int | None) -> None:
    touch(text, header_bytes)


@given(st.integers(0, len(VALID) - 1), st.binary(max_size=6), st.integers(0, 6))
def test_a_damaged_request_is_a_request_or_a_request_error(at: int, put: bytes, cut: int) -> None:
    damaged = VALID[:at] + put + VALID[at + cut :]
    touch(damaged + b"abcdefgh", len(damaged))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON, st.sampled_from([*DTYPES, BYTES]) | st.text(max_size=5), JSON)
def test_any_json_in_any_place(shape: Any, data: Any, datatype: str, parameters: Any) -> None:
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "data": data}
    touch(json.dumps({"inputs": [tensor], "parameters": parameters}).encode(), None)
    touch(json.dumps({"inputs": [{**tensor, "shape": [2], "parameters": parameters}]}).encode(), None)
