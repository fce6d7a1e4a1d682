"""Inference requests and responses over gRPC: tritonclient's messages to and from `InferRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from veltair.errors import RequestError, quoted
from veltair.server.protocol import length_prefixed
from veltair.server.protocol.datatypes import BYTES, Array, datatype_name, numpy_dtype
from veltair.server.protocol.infer_request import (
    InferRequest,
    NamedTensor,
    Parameter,
    RequestedOutput,
    TensorLocation,
    parse_tensor_location,
    refuse_unsupported,
)
from veltair.server.protocol.request_bounds import check_counts, check_parameters, check_shape
from veltair.server.protocol.tensor_values import tensor_bytes, tensor_values

# The field of InferTensorContents that holds a datatype. FP16 and BF16 have none: they are sent raw.
_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

# The raw contents of a request with more fields than these are not looked for: that takes longer than copying them.
_MAX_FIELDS = 64
_FIELD_BYTES = 4096  # unless the fields have this many bytes on average
_LENGTH_DELIMITED = 2  # protobuf's wire type
_RAW_CONTENTS = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_MAX_VARINT_BYTES = 10

_FIRST_FIELDS = {1: "model_name", 2: "model_version", 3: "id"}  # of a request, by number
INLINE_BYTES = 256 * 1024  # of a request but its raw contents; numbers and strings in that many take about 25 ms


class GrpcRequest(NamedTuple):
    """A ModelInferRequest whose raw contents may be views of the received bytes.

    >>> data = pb.ModelInferRequest(model_name="mlp", raw_input_contents=[b"1234"]).SerializeToString()
    >>> request = parse_request(memoryview(data))
    >>> request.message.model_name, bytes(request.buffers[0])
    ('mlp', b'1234')
    """

    message: Any  # None: it has more than INLINE_BYTES, and is parsed in another process (`JsonParser`)
    buffers: Sequence[bytes | memoryview]  # the raw contents
    data: memoryview  # all of it, as it came


def parse_request(data: memoryview, inline_bytes: int = INLINE_BYTES) -> GrpcRequest:
    """Parse a ModelInferRequest. Protobuf would copy raw contents twice; here they stay views of `data` if few.

    Raises DecodeError.
    """
    if len(data) > inline_bytes and length_prefixed.bytes_beside_field(data, _RAW_CONTENTS) > inline_bytes:
        return GrpcRequest(None, (), data)
    rest: list[memoryview] = []
    buffers: list[memoryview] = []
    at = kept = 0
    for _ in range(max(_MAX_FIELDS, len(data) // _FIELD_BYTES)):
        if at == len(data):
            message = pb.ModelInferRequest.FromString(b"".join([*rest, data[kept:]]))
            return GrpcRequest(message, buffers, data)
        begin = at
        tag, at = _varint(data, at)
        if tag & 7 != _LENGTH_DELIMITED:  # this message has none; unknown ones are protobuf's
            break
        size, at = _varint(data, at)
        if at + size > len(data):
            break
        if tag >> 3 == _RAW_CONTENTS:
            rest.append(data[kept:begin])
            buffers.append(data[at : at + size])
            kept = at + size
        at += size
    message = pb.ModelInferRequest.FromString(bytes(data))
    return GrpcRequest(message, message.raw_input_contents, data)


def read_names(data: memoryview) -> dict[str, str]:
    """Model, version and id of a ModelInferRequest that nobody has parsed; they stand before what may be large.

    >>> read_names(memoryview(pb.ModelInferRequest(model_name="mlp", id="7").SerializeToString()))
    {'model_name': 'mlp', 'model_version': '', 'id': '7'}
    """
    at, found = 0, dict.fromkeys(_FIRST_FIELDS.values(), "")
    try:
        while at < len(data):
            tag, at = _varint(data, at)
            size, at = _varint(data, at)
            if tag & 7 != _LENGTH_DELIMITED or (field := _FIRST_FIELDS.get(tag >> 3)) is None:
                break
            found[field] = bytes(data[at : at + size]).decode()
            at += size
    except (DecodeError, UnicodeDecodeError):
        pass  # as far as it can be read
    return found


def with_raw_contents(data: bytes) -> bytes:
    """The same request with every tensor raw, or named by its place in shared memory. Raises RequestError."""
    try:
        message = pb.ModelInferRequest.FromString(data)
    except DecodeError:
        raise RequestError("the request is no message of its type") from None
    request = decode_request(GrpcRequest(message, message.raw_input_contents, memoryview(data)))
    raw = [
        bytes(tensor.data if isinstance(tensor.data, (bytes, memoryview)) else tensor_bytes(tensor_values(tensor)))
        for tensor in request.inputs
        if not isinstance(tensor.data, TensorLocation)
    ]
    for entry in message.inputs:
        entry.ClearField("contents")
    del message.raw_input_contents[:]
    message.raw_input_contents.extend(raw)
    encoded: bytes = message.SerializeToString()
    return encoded


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends. Raises DecodeError."""
    value = shift = 0
    for end, byte in enumerate(data[at : at + _MAX_VARINT_BYTES], at + 1):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end
        shift += 7
    raise DecodeError("a number that is cut off")


def decode_request(request: GrpcRequest) -> InferRequest:
    """Raises RequestError."""
    message, buffers, _ = request
    check_counts(len(message.inputs), len(message.outputs), len(message.parameters))
    taken = 0
    inputs = []
    for tensor in message.inputs:
        where = f"input {quoted(tensor.name)}"
        check_shape(where, tensor.shape)
        if tensor.parameters:
            check_parameters(where, len(tensor.parameters))
        data: Any = parse_tensor_location(where, _parameters(tensor.parameters)) if tensor.parameters else None
        if data is not None:
            if tensor.HasField("contents"):
                raise RequestError(f"{where}: has both contents and a place in shared memory")
        elif not buffers:
            data = _typed_contents(where, tensor)
        elif tensor.HasField("contents"):
            raise RequestError(f"{where}: has both contents and raw_input_contents")
        else:
            data = buffers[taken] if taken < len(buffers) else b""
            taken += 1
        inputs.append(NamedTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    if buffers and taken != len(buffers):
        raise RequestError(f"{taken} inputs come raw, but {len(buffers)} raw_input_contents")
    parameters = _parameters(message.parameters) if message.parameters else {}
    refuse_unsupported("request", parameters)
    for output in message.outputs:
        check_parameters(f"output {quoted(output.name)}", len(output.parameters))
    outputs = tuple(
        RequestedOutput(o.name, True, parse_tensor_location(f"output {quoted(o.name)}", _parameters(o.parameters)))
        for o in message.outputs
    )
    return InferRequest(message.id, parameters, tuple(inputs), outputs, True)


def encode_response(
    model: str,
    version: str,
    request_id: str,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Parameter],
    stored: Mapping[str, TensorLocation],
) -> Any:
    """A ModelInferResponse; every tensor is raw, except those that were stored in shared memory."""
    response = pb.ModelInferResponse(model_name=model, model_version=version, id=request_id)
    for name, values in outputs.items():
        entry = response.outputs.add(name=name, datatype=datatype_name(values.dtype), shape=values.shape)
        location = stored.get(name)
        for key, value in location.parameters.items() if location else ():
            set_parameter(entry.parameters[key], value)
        # Clients expect one entry for each output.
        response.raw_output_contents.append(b"" if location else tensor_bytes(values).tobytes())
    for key, value in parameters.items():
        set_parameter(response.parameters[key], value)
    return response


def set_parameter(field: Any, value: Parameter) -> None:
    """Write a value into an InferParameter."""
    if isinstance(value, bool):
        field.bool_param = value
    elif isinstance(value, int):
        field.int64_param = value
    elif isinstance(value, float):
        field.double_param = value
    else:
        field.string_param = value


def _parameters(entries: Mapping[str, Any]) -> dict[str, Parameter]:
    values = {}
    for key, entry in entries.items():
        choice = entry.WhichOneof("parameter_choice")
        if choice is not None:
            values[key] = getattr(entry, choice)
    return values


def _typed_contents(where: str, tensor: Any) -> Array | Sequence[bytes]:
    """The numbers as a flat array; strings stay in the message until their shape is checked."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        numpy_dtype(tensor.datatype)
        raise RequestError(f"{where}: {tensor.datatype} has no typed contents; send it in raw_input_contents")
    contents = tensor.contents
    filled = [descriptor.name for descriptor, _ in contents.ListFields()]
    if filled not in ([], [field]):
        raise RequestError(f"{where}: {tensor.datatype} stands in {field}, got {', '.join(filled)}")
    values: Sequence[Any] = getattr(contents, field)
    if tensor.datatype == BYTES:
        return values
    dtype = numpy_dtype(tensor.datatype)
    if dtype.kind == "f":  # packed little-endian on the wire, and the only field there: its tail is the array
        size = len(values) * dtype.itemsize
        return np.frombuffer(contents.SerializeToString()[-size:] if size else b"", dtype)
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise RequestError(f"{where}: a number does not fit {tensor.datatype}") from None
