"""Requests and responses over HTTP, in JSON and in the binary form."""

import json
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.utils import serialize_byte_tensor

from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol.datatypes import BYTES, DTYPES, datatype_name
from veltair.server.protocol.http_codec import decode_request, encode_request, encode_response
from veltair.server.protocol.infer_request import InferRequest, NamedTensor, RequestedOutput, TensorLocation
from veltair.server.protocol.tensor_values import tensor_bytes, tensor_values


def body(*inputs: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **more}).encode()


def fp32(data: Any, shape: Any = (1, 2)) -> dict[str, Any]:
    return {"name": "x", "shape": list(shape), "datatype": "FP32", "data": data}


def one(text: bytes, header_bytes: int | None = None) -> np.ndarray[Any, Any]:
    values = tensor_values(decode_request(text, header_bytes).inputs[0])
    assert isinstance(values, np.ndarray)
    return values


def words(text: bytes, header_bytes: int | None = None) -> list[bytes]:
    values = tensor_values(decode_request(text, header_bytes).inputs[0])
    assert isinstance(values, Strings)
    return values.tolist()


def test_flat_and_nested_json_are_the_same_tensor() -> None:
    flat, nested = one(body(fp32([1, 2.5]))), one(body(fp32([[1, 2.5]])))
    np.testing.assert_array_equal(flat, np.array([[1, 2.5]], np.float32))
    np.testing.assert_array_equal(flat, nested)
    assert flat.dtype == nested.dtype == np.float32


def test_json_may_be_laid_out_as_one_likes() -> None:
    text = json.dumps({"inputs": [fp32([[[1, 2]]], (1, 1, 2))]}, indent=60).replace("\n", "\r\n\t").encode()
    np.testing.assert_array_equal(one(text), np.array([[[1, 2]]], np.float32))


def test_requested_outputs_and_parameters() -> None:
    request = decode_request(
        body(
            fp32([1, 2]),
            id="q7",
            parameters={"timeout": 5, "binary_data_output": True, "empty": None},
            outputs=[{"name": "y"}, {"name": "z", "parameters": {"binary_data": False}}],
        )
    )
    assert request.id == "q7"
    assert request.parameters == {"timeout": 5, "binary_data_output": True}
    assert request.outputs == (RequestedOutput("y", True), RequestedOutput("z", False))
    assert request.binary_output


@pytest.mark.parametrize("datatype", DTYPES)
@given(data=st.data())
def test_every_datatype_survives_both_forms(datatype: str, data: st.DataObject) -> None:
    dtype = DTYPES[datatype]
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4))
    size = int(np.prod(shape)) * dtype.itemsize
    sample = data.draw(st.binary(min_size=size, max_size=size))
    if datatype == "BOOL":
        sample = bytes(b & 1 for b in sample)
    values = np.frombuffer(sample, dtype).reshape(shape)
    sent = InferRequest("", {}, (NamedTensor("x", datatype, shape, values.reshape(-1)),), (), True)
    message = encode_request(sent)
    back = one(message.body, message.header_bytes)
    assert back.shape == shape
    assert tensor_bytes(back) == sample  # bit by bit, NaNs included
    with np.errstate(invalid="ignore"):  # a signalling NaN
        finite = bool(np.isfinite(values.astype(np.float64)).all())
    if values.size and finite:
        text = encode_response("m", "1", InferRequest("", {}, (), ()), {"x": values}, {}, {}).body
        output = json.loads(text)["outputs"][0]
        again = one(json.dumps({"inputs": [{"name": "x", **output}]}).encode())
        np.testing.assert_array_equal(again, values)


@given(st.lists(st.binary(max_size=12), max_size=5))
def test_bytes_survive_the_binary_form(items: list[bytes]) -> None:
    message = encode_request(InferRequest("", {}, (NamedTensor("x", BYTES, (len(items),), items),), ()))
    assert words(message.body, message.header_bytes) == items
    assert message.body.endswith(serialized(items))


def serialized(items: list[bytes]) -> bytes:
    """As tritonclient sends them."""
    if not items:
        return b""
    values = np.empty(len(items), object)
    values[:] = items
    found: bytes = serialize_byte_tensor(values).item()
    return found


@given(st.lists(st.text(max_size=8), min_size=1, max_size=5))
def test_bytes_in_json_are_utf8_strings(items: list[str]) -> None:
    tensor = {"name": "x", "shape": [1, len(items)], "datatype": BYTES}
    for data in (items, [items]):
        values = words(msgspec.json.encode({"inputs": [{**tensor, "data": data}]}))
        assert [item.decode() for item in values] == items


def test_mixed_outputs() -> None:
    request = InferRequest("7", {}, (), (RequestedOutput("a", True), RequestedOutput("b", False)))
    outputs = {"a": np.array([[1.5]], np.float32), "b": np.array([3], np.int64)}
    message = encode_response("m", "1", request, outputs, {"queue_ns": 5}, {})
    assert message.header_bytes is not None
    header = json.loads(message.body[: message.header_bytes])
    assert header == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "parameters": {"queue_ns": 5},
        "outputs": [
            {"name": "a", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
            {"name": "b", "datatype": "INT64", "shape": [1], "data": [3]},
        ],
    }
    assert message.body[message.header_bytes :] == np.float32(1.5).tobytes()


def test_json_has_no_number_for_nan() -> None:
    values = np.array([np.nan, np.inf, 1], np.float32)
    response = encode_response("m", "1", InferRequest("", {}, (), ()), {"x": values}, {}, {})
    assert json.loads(response.body)["outputs"][0]["data"] == [None, None, 1.0]


def in_memory(**parameters: object) -> dict[str, object]:
    return {"name": "x", "shape": [2], "datatype": "FP32", "parameters": parameters}


def test_places_in_shared_memory_come_through() -> None:
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    sent = body(
        in_memory(**place), fp32([1, 2]), outputs=[{"name": "y", "parameters": place | {"shared_memory_offset": 4}}]
    )
    request = decode_request(sent)
    assert request.inputs[0].data == TensorLocation("r", 0, 8) and not isinstance(
        request.inputs[1].data, TensorLocation
    )
    assert request.outputs == (RequestedOutput("y", False, TensorLocation("r", 4, 8)),)
    message = encode_request(request)
    again = decode_request(message.body, message.header_bytes)
    assert again.inputs[0] == request.inputs[0] and again.outputs == request.outputs
    answer = encode_response(
        "m", "1", request, {"y": np.ones((1, 2), np.float32)}, {}, {"y": TensorLocation("r", 4, 8)}
    )
    assert answer.header_bytes is None
    assert json.loads(answer.body)["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": place | {"shared_memory_offset": 4}}
    ]


def test_bfloat16_has_the_protocols_name() -> None:
    assert datatype_name(np.dtype(ml_dtypes.bfloat16)) == "BF16"
