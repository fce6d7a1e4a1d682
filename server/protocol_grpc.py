"""The gRPC form of inference: tritonclient's messages to and from `InferRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from veltair.errors import RequestError
from veltair.server.protocol import (
    BYTES,
    Array,
    InferRequest,
    NamedTensor,
    Parameter,
    RequestedOutput,
    datatype_of,
    dtype_of,
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


def decode_request(message: Any) -> InferRequest:
    """From a ModelInferRequest. Raises RequestError."""
    buffers = message.raw_input_contents
    tensors = message.inputs
    if buffers and len(buffers) != len(tensors):
        raise RequestError(f"{len(tensors)} inputs, but {len(buffers)} raw_input_contents")
    inputs = []
    for index, tensor in enumerate(tensors):
        if tensor.parameters:
            refuse_unsupported(f"input {tensor.name!r}", _parameters(tensor.parameters))
        if not buffers:
            data: Any = _typed(f"input {tensor.name!r}", tensor)
        elif tensor.HasField("contents"):
            raise RequestError(f"input {tensor.name!r}: has both contents and raw_input_contents")
        else:
            data = buffers[index]
        inputs.append(NamedTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    parameters = _parameters(message.parameters) if message.parameters else {}
    refuse_unsupported("request", parameters)
    outputs = []
    for output in message.outputs:
        if output.parameters:
            refuse_unsupported(f"output {output.name!r}", _parameters(output.parameters))
        outputs.append(RequestedOutput(output.name, True))
    return InferRequest(message.id, parameters, tuple(inputs), tuple(outputs), True)


def encode_response(
    model: str, version: str, request_id: str, outputs: Mapping[str, Array], parameters: Mapping[str, Parameter]
) -> Any:
    """A ModelInferResponse; every tensor raw."""
    response = pb.ModelInferResponse(model_name=model, model_version=version, id=request_id)
    for name, values in outputs.items():
        response.outputs.add(name=name, datatype=datatype_of(values.dtype), shape=values.shape)
        response.raw_output_contents.append(raw(values).tobytes())
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
