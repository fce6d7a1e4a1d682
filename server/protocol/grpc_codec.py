"""The gRPC form of inference: tritonclient's messages to and from `InferRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from veltair.errors import RequestError
from veltair.server.protocol.requests import (
    BYTES,
    Array,
    InferRequest,
    NamedTensor,
    Parameter,
    Place,
    RequestedOutput,
    datatype_of,
    dtype_of,
    place_of,
    raw,
    refuse_unsupported,
)

# The field of InferTensorContents that holds a datatype. FP16 and BF16 have none: they come raw.
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

_MOST_FIELDS = 64  # of a request whose raw contents are looked for: to find more takes longer than to copy, unless
_FIELD_BYTES = 4096  # there are so many bytes for each
_LENGTH_DELIMITED = 2  # protobuf's wire type
_LONGEST_VARINT = 10  # bytes


class Received(NamedTuple):
    """A ModelInferRequest, but for its raw contents where those are not copied."""

    message: Any
    buffers: Sequence[bytes | memoryview]


def receive(data: memoryview) -> Received:
    """Parse a ModelInferRequest. Protobuf would copy raw contents twice; they stay views of `data` where they are few.

    Raises DecodeError.
    """
    rest: list[memoryview] = []
    buffers: list[memoryview] = []
    at = kept = 0
    for _ in range(max(_MOST_FIELDS, len(data) // _FIELD_BYTES)):
        if at == len(data):
            message = pb.ModelInferRequest.FromString(b"".join([*rest, data[kept:]]))
            return Received(message, buffers)
        begin = at
        tag, at = _varint(data, at)
        if tag & 7 != _LENGTH_DELIMITED:  # this message has none; unknown ones are protobuf's
            break
        size, at = _varint(data, at)
        if at + size > len(data):
            break
        if tag >> 3 == pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER:
            rest.append(data[kept:begin])
            buffers.append(data[at : at + size])
            kept = at + size
        at += size
    message = pb.ModelInferRequest.FromString(bytes(data))
    return Received(message, message.raw_input_contents)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    value = shift = 0
    for end, byte in enumerate(data[at : at + _LONGEST_VARINT], at + 1):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, end
        shift += 7
    raise DecodeError("a number that is cut off")


def decode_request(received: Received) -> InferRequest:
    """Raises RequestError."""
    (message, buffers), taken = received, 0
    inputs = []
    for tensor in message.inputs:
        where = f"input {tensor.name!r}"
        data: Any = place_of(where, _parameters(tensor.parameters)) if tensor.parameters else None
        if data is not None:
            if tensor.HasField("contents"):
                raise RequestError(f"{where}: has both contents and a place in shared memory")
        elif not buffers:
            data = _typed(where, tensor)
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
    outputs = tuple(
        RequestedOutput(o.name, True, place_of(f"output {o.name!r}", _parameters(o.parameters)))
        for o in message.outputs
    )
    return InferRequest(message.id, parameters, tuple(inputs), outputs, True)


def encode_response(
    model: str,
    version: str,
    request_id: str,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Parameter],
    stored: Mapping[str, Place],
) -> Any:
    """A ModelInferResponse; every tensor raw, but for those that were stored in shared memory."""
    response = pb.ModelInferResponse(model_name=model, model_version=version, id=request_id)
    for name, values in outputs.items():
        entry = response.outputs.add(name=name, datatype=datatype_of(values.dtype), shape=values.shape)
        place = stored.get(name)
        for key, value in place.parameters.items() if place else ():
            set_parameter(entry.parameters[key], value)
        response.raw_output_contents.append(b"" if place else raw(values).tobytes())  # clients count on one an output
    for key, value in parameters.items():
        set_parameter(response.parameters[key], value)
    return response


def set_parameter(field: Any, value: Parameter) -> None:
    """Into an InferParameter."""
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


def _typed(where: str, tensor: Any) -> Array | Sequence[bytes]:
    """Strings stay in the message until their shape is checked."""
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        dtype_of(tensor.datatype)
        raise RequestError(f"{where}: {tensor.datatype} has no typed contents; send it in raw_input_contents")
    contents = tensor.contents
    filled = [descriptor.name for descriptor, _ in contents.ListFields()]
    if filled not in ([], [field]):
        raise RequestError(f"{where}: {tensor.datatype} stands in {field}, got {', '.join(filled)}")
    values: Sequence[Any] = getattr(contents, field)
    if tensor.datatype == BYTES:
        return values
    dtype = dtype_of(tensor.datatype)
    if dtype.kind == "f":  # packed little-endian on the wire, and the only field there: its tail is the array
        size = len(values) * dtype.itemsize
        return np.frombuffer(contents.SerializeToString()[-size:] if size else b"", dtype)
    try:
        return np.array(values, dtype)
    except OverflowError:
        raise RequestError(f"{where}: a number does not fit {tensor.datatype}") from None
