"""What a request may name is bounded before anything is computed from it, over both protocols."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from veltair.errors import RequestError
from veltair.server.protocol import grpc_codec, http_codec
from veltair.server.protocol.grpc_codec import INLINE_BYTES, parse_request, with_raw_contents
from veltair.server.protocol.json_parser import JsonParser
from veltair.server.protocol.request_bounds import MAX_PARAMETERS, MAX_RANK, MAX_TENSORS
from veltair.server.protocol.tensor_values import tensor_bytes, tensor_values

MANY_PARAMETERS = {f"p{i}": 1 for i in range(MAX_PARAMETERS + 1)}
X = {"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dimensions": ({"inputs": [X | {"shape": [1 << 62] * 20_000}]}, "20000 dimensions; a tensor has 16 at most"),
    "one dimension more": ({"inputs": [X | {"shape": [1] * (MAX_RANK + 1)}]}, "17 dimensions"),
    "inputs": ({"inputs": [X] * (MAX_TENSORS + 1)}, "4097 inputs; it may have 4096"),
    "outputs": ({"inputs": [X], "outputs": [{"name": "y"}] * (MAX_TENSORS + 1)}, "4097 outputs"),
    "parameters": ({"inputs": [X], "parameters": MANY_PARAMETERS}, "1025 parameters; it may have 1024"),
    "parameters of an input": ({"inputs": [X | {"parameters": MANY_PARAMETERS}]}, "1025 parameters"),
    "parameters of an output": (
        {"inputs": [X], "outputs": [{"name": "y", "parameters": MANY_PARAMETERS}]},
        "1025 parameters",
    ),
}


def message_of(request: dict[str, Any]) -> Any:
    message = pb.ModelInferRequest(model_name="m")
    for entry in request["inputs"]:
        tensor = message.inputs.add(name=entry["name"], datatype=entry["datatype"], shape=entry["shape"])
        tensor.contents.int64_contents.extend(entry["data"])
        for key in entry.get("parameters", ()):
            tensor.parameters[key].int64_param = 1
    for entry in request.get("outputs", ()):
        output = message.outputs.add(name=entry["name"])
        for key in entry.get("parameters", ()):
            output.parameters[key].int64_param = 1
    for key in request.get("parameters", ()):
        message.parameters[key].int64_param = 1
    return message


@pytest.mark.parametrize("case", REFUSED)
def test_more_than_a_request_may_have(case: str) -> None:
    request, text = REFUSED[case]
    message = message_of(request)
    data = message.SerializeToString()
    with pytest.raises(RequestError, match=text):
        http_codec.decode_request(json.dumps(request).encode())
    with pytest.raises(RequestError, match=text):
        grpc_codec.decode_request(parse_request(memoryview(data), len(data)))
    with pytest.raises(RequestError, match=text):
        with_raw_contents(data)


@pytest.mark.parametrize("dimension", [1 << 63, 10**4000, -(10**4000)])
def test_dimensions_beyond_64_bits(dimension: int) -> None:
    with pytest.raises(RequestError, match="a dimension is beyond 64 bits"):
        http_codec.decode_request(
            b'{"inputs":[{"name":"x","shape":[%s],"datatype":"INT8","data":[1]}]}' % digits(dimension)
        )


def digits(number: int) -> bytes:
    """Longer than Python writes a number."""
    return b"%s%d%s" % (b"-" if number < 0 else b"", 1, b"0" * 4000) if abs(number) > 1 << 64 else b"%d" % number


def test_a_shape_of_the_most_dimensions_is_refused_with_a_text() -> None:
    """The product of its dimensions has more digits than most numbers, and can be written still."""
    body = {"inputs": [X | {"shape": [(1 << 63) - 1] * MAX_RANK}]}
    (tensor,) = http_codec.decode_request(json.dumps(body).encode()).inputs
    with pytest.raises(RequestError, match="elements, got 1"):
        tensor_values(tensor)


def typed(count: int) -> Any:
    message = pb.ModelInferRequest(model_name="m", id="7")
    message.inputs.add(name="n", datatype="INT64", shape=[count]).contents.int64_contents.extend(range(count))
    message.inputs.add(name="b", datatype="BOOL", shape=[3]).contents.bool_contents.extend([True, False, True])
    message.inputs.add(name="s", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"bc"])
    message.inputs.add(name="f", datatype="FP32", shape=[2]).contents.fp32_contents.extend([1.5, 2.5])
    return message


def test_many_numbers_in_the_fields_of_a_message_are_parsed_elsewhere() -> None:
    data = typed(200_000).SerializeToString()
    assert len(data) > INLINE_BYTES
    assert parse_request(memoryview(data)).message is None  # nothing of it was parsed

    async def main() -> bytes:
        parser = JsonParser()
        try:
            with pytest.raises(RequestError, match="no message"):
                await parser.with_raw_contents(data[:-1])
            return await parser.with_raw_contents(data)
        finally:
            await parser.close()

    raw = parse_request(memoryview(asyncio.run(main())))
    found, expected = (grpc_codec.decode_request(each) for each in (raw, parse_request(memoryview(data), len(data))))
    assert (found.id, found.outputs, found.parameters) == (expected.id, expected.outputs, expected.parameters)
    for a, b in zip(found.inputs, expected.inputs, strict=True):
        assert (a.name, a.datatype, a.shape) == (b.name, b.datatype, b.shape)
        assert tensor_bytes(tensor_values(a)) == tensor_bytes(tensor_values(b))


@pytest.mark.parametrize("parts", [1, 1000])
def test_raw_tensors_of_any_size_are_not(parts: int) -> None:
    message = pb.ModelInferRequest(model_name="m")
    for i in range(parts):
        message.inputs.add(name=f"x{i}", datatype="FP32", shape=[1])
        message.raw_input_contents.append(np.zeros((8 << 20) // parts, np.uint8).tobytes())
    found = parse_request(memoryview(message.SerializeToString()))
    assert found.message is not None and len(found.buffers) == parts
