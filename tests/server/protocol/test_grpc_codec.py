"""The protobuf form, without a server."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from veltair.errors import RequestError, UnsupportedError
from veltair.profiles.artifact.strings import Strings
from veltair.server.protocol.datatypes import BYTES, DTYPES
from veltair.server.protocol.grpc_codec import _CONTENTS, decode_request, encode_response, parse_request
from veltair.server.protocol.infer_request import InferRequest, TensorLocation
from veltair.server.protocol.tensor_values import tensor_bytes, tensor_values


def decoded(request: Any) -> InferRequest:
    return decode_request(parse_request(memoryview(request.SerializeToString())))


def message(datatype: str, shape: tuple[int, ...], **contents: Any) -> Any:
    request = pb.ModelInferRequest(model_name="m", id="1")
    request.inputs.add(name="x", datatype=datatype, shape=shape)
    for field, values in contents.items():
        getattr(request.inputs[0].contents, field).extend(values)
    return request


@pytest.mark.parametrize("datatype", sorted(_CONTENTS.keys() - {BYTES}))
def test_typed_contents(datatype: str) -> None:
    values = [True, False] if datatype == "BOOL" else [1, 0]
    request = decoded(message(datatype, (1, 2), **{_CONTENTS[datatype]: values}))
    back = tensor_values(request.inputs[0])
    assert isinstance(back, np.ndarray)
    assert back.dtype == DTYPES[datatype]
    assert back.tolist() == [values]


@given(st.lists(st.floats(width=32), max_size=9))
def test_typed_floats_are_exact(values: list[float]) -> None:
    request = decoded(message("FP32", (len(values),), fp32_contents=values))
    np.testing.assert_array_equal(tensor_values(request.inputs[0]), np.array(values, np.float32))


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_strings_in_both_forms(values: list[bytes]) -> None:
    raw_form = message(BYTES, (len(values),))
    raw_form.raw_input_contents.append(b"".join(len(value).to_bytes(4, "little") + value for value in values))
    for sent in (message(BYTES, (len(values),), bytes_contents=values), raw_form):
        back = tensor_values(decoded(sent).inputs[0])
        assert isinstance(back, Strings)
        assert back.tolist() == values


def test_raw_contents_are_not_copied() -> None:
    sample = np.arange(4, dtype="<f4").tobytes()
    request = message("FP32", (2, 2))
    request.raw_input_contents.append(sample)
    back = tensor_values(decoded(request).inputs[0])
    np.testing.assert_array_equal(back, np.arange(4, dtype=np.float32).reshape(2, 2))
    assert isinstance(back, np.ndarray) and not back.flags.owndata


@pytest.mark.parametrize(("inputs", "values", "shared"), [(30, 2, True), (40, 2, False), (40, 1 << 12, True)])
def test_many_raw_contents_are_copied_only_where_they_are_small(inputs: int, values: int, shared: bool) -> None:
    request = pb.ModelInferRequest(model_name="m")
    for i in range(inputs):
        request.inputs.add(name=f"x{i}", datatype="FP32", shape=(values,))
        request.raw_input_contents.append(np.full(values, i, "<f4").tobytes())
    sent = np.frombuffer(request.SerializeToString(), np.uint8)
    for i, tensor in enumerate(decode_request(parse_request(sent.data)).inputs):
        back = tensor_values(tensor)
        assert isinstance(back, np.ndarray)
        assert (back == i).all() and back.shape == (values,)
        assert np.shares_memory(back, sent) == shared


def test_malformed() -> None:
    request = message("FP32", (1,))
    request.raw_input_contents.extend([b"abcd", b"efgh"])
    with pytest.raises(RequestError, match="1 inputs come raw, but 2 raw"):
        decoded(request)
    request = message("FP32", (1,), fp32_contents=[1])
    request.raw_input_contents.append(b"abcd")
    with pytest.raises(RequestError, match="both"):
        decoded(request)
    with pytest.raises(RequestError, match="stands in fp32_contents, got int_contents"):
        decoded(message("FP32", (1,), int_contents=[1]))
    with pytest.raises(RequestError, match="no typed contents"):
        decoded(message("BF16", (1,), fp32_contents=[1]))
    with pytest.raises(RequestError, match="does not fit INT8"):
        decoded(message("INT8", (1,), int_contents=[300]))
    with pytest.raises(RequestError, match="unknown datatype"):
        decoded(message("F", (1,)))
    with pytest.raises(RequestError, match="expected 2 strings, got 1"):
        tensor_values(decoded(message(BYTES, (2,), bytes_contents=[b"a"])).inputs[0])
    with pytest.raises(RequestError, match="takes 2 elements, got 0"):
        tensor_values(decoded(message("FP32", (2,))).inputs[0])
    request = message("FP32", (1,), fp32_contents=[1])
    request.inputs[0].parameters["sequence_id"].int64_param = 7
    with pytest.raises(UnsupportedError, match="sequences"):
        decoded(request)


def test_places_in_shared_memory_stand_beside_raw_tensors() -> None:
    request = message("FP32", (2,))
    request.inputs[0].parameters["shared_memory_region"].string_param = "r"
    request.inputs[0].parameters["shared_memory_byte_size"].int64_param = 8
    request.inputs.add(name="y", datatype="UINT8", shape=[1])
    request.raw_input_contents.append(b"\x07")
    placed, came = decoded(request).inputs
    assert placed.data == TensorLocation("r", 0, 8) and came.data == b"\x07"
    request.raw_input_contents.append(b"\x08")
    with pytest.raises(RequestError, match="1 inputs come raw, but 2 raw_input_contents"):
        decoded(request)
    request.inputs[0].contents.fp32_contents.append(1.0)
    with pytest.raises(RequestError, match="both contents and a place"):
        decoded(request)


def test_answers_say_what_went_to_shared_memory() -> None:
    outputs = {"a": np.ones(2, np.float32), "b": np.zeros(1, np.int8)}
    response = encode_response("m", "1", "7", outputs, {}, {"a": TensorLocation("r", 16, 8)})
    parameters = response.outputs[0].parameters
    assert parameters["shared_memory_region"].string_param == "r"
    assert [parameters[f"shared_memory_{key}"].int64_param for key in ("offset", "byte_size")] == [16, 8]
    assert list(response.raw_output_contents) == [b"", b"\x00"] and not response.outputs[1].parameters


def test_answers_are_raw() -> None:
    outputs = {
        "a": np.array([[1, 2]], ml_dtypes.bfloat16),
        "b": np.array([True]),
        "c": np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3)),
    }
    parameters = {"i": 5, "f": 1.5, "t": True, "s": "x"}
    response = encode_response("m", "1", "7", outputs, parameters, {})
    assert (response.model_name, response.model_version, response.id) == ("m", "1", "7")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("a", "BF16", [1, 2]),
        ("b", "BOOL", [1]),
        ("c", "INT32", [2, 3]),
    ]
    assert list(response.raw_output_contents) == [bytes(tensor_bytes(values)) for values in outputs.values()]
    assert response.raw_output_contents[2] == np.arange(6, dtype=np.int32).tobytes()
    choices = {key: p.WhichOneof("parameter_choice") for key, p in response.parameters.items()}
    assert choices == {"i": "int64_param", "f": "double_param", "t": "bool_param", "s": "string_param"}
