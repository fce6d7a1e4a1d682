"""Inference requests and responses over HTTP: JSON, or JSON followed by raw tensors (the binary extension).

Pure functions over bytes. The first n bytes (`Inference-Header-Content-Length: n`) are JSON; the raw buffers of the
inputs with `binary_data_size` follow in the order of those inputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from veltair.errors import RequestError, quoted
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
from veltair.server.protocol.request_bounds import MAX_RANK, check_counts, check_parameters, check_shape
from veltair.server.protocol.tensor_values import tensor_bytes, tensor_values


class _Input(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Parameter | None] = {}
    data: msgspec.Raw = msgspec.Raw()  # parsed when its datatype is known


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Parameter | None] = {}


class _Request(msgspec.Struct):
    inputs: tuple[_Input, ...]
    id: str = ""
    parameters: dict[str, Parameter | None] = {}
    outputs: tuple[_Output, ...] | None = None


_request_decoder = msgspec.json.Decoder(_Request)
_encoder = msgspec.json.Encoder()
_OPENING = re.compile(rb"[\s\[]*")


@dataclass(frozen=True, slots=True)
class HttpBody:
    """An encoded body.

    >>> body = encode_request(InferRequest("7", {}, (NamedTensor("x", "INT8", (1,), bytes(1)),), ()))
    >>> len(body.body) - body.header_bytes
    1
    """

    body: bytes
    header_bytes: int | None  # length of the JSON part; None when the body is JSON alone


def decode_request(body: bytes | memoryview, header_bytes: int | None = None) -> InferRequest:
    """Decode a body whose first `header_bytes` are JSON, by default all of it.

    Raises RequestError, or UnsupportedError for sequences, and nothing else whatever the bytes are.
    """
    view = memoryview(body)
    if header_bytes is not None and not 0 <= header_bytes <= len(view):
        raise RequestError(f"Inference-Header-Content-Length is {header_bytes}, the body has {len(view)} bytes in all")
    header = view if header_bytes is None else view[:header_bytes]
    tail = view[len(header) :]
    request = _parse_json(_request_decoder, header, "request")
    check_counts(len(request.inputs), len(request.outputs or ()), len(request.parameters))
    refuse_unsupported("request", request.parameters)
    inputs, at = [], 0
    for tensor in request.inputs:
        check_shape(f"input {quoted(tensor.name)}", tensor.shape)
        size, location = tensor.parameters.get("binary_data_size"), None
        if len(tensor.parameters) > (size is not None):
            check_parameters(f"input {quoted(tensor.name)}", len(tensor.parameters))
            location = parse_tensor_location(f"input {quoted(tensor.name)}", tensor.parameters)
        data: memoryview | Array | list[bytes] | TensorLocation
        if location is not None:
            if size is not None or bytes(tensor.data):
                raise RequestError(f"input {quoted(tensor.name)}: has both data and a place in shared memory")
            data = location
        elif size is None:
            data = _typed_data(tensor)
        elif not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise RequestError(
                f"input {quoted(tensor.name)}: binary_data_size must be a count of bytes, got {quoted(size, 40)}"
            )
        elif bytes(tensor.data):
            raise RequestError(f"input {quoted(tensor.name)}: has both data and binary_data_size")
        elif at + size > len(tail):
            raise RequestError(
                f"input {quoted(tensor.name)}: binary_data_size is {size}, {len(tail) - at} bytes are left in the body"
            )
        else:
            data = tail[at : at + size]
            at += size
        inputs.append(NamedTensor(tensor.name, tensor.datatype, tensor.shape, data))
    if at != len(tail):
        raise RequestError(f"{len(tail)} bytes follow the JSON part, the inputs account for {at}")
    binary = _flag("request", request.parameters, "binary_data_output", default=False)
    outputs = []
    for output in request.outputs or ():
        where = f"output {quoted(output.name)}"
        check_parameters(where, len(output.parameters))
        location = parse_tensor_location(where, output.parameters)
        raw = _flag(where, output.parameters, "binary_data", default=binary)
        outputs.append(RequestedOutput(output.name, raw, location))
    parameters = {key: value for key, value in request.parameters.items() if value is not None}
    return InferRequest(request.id, parameters, tuple(inputs), tuple(outputs), binary)


def _flag(where: str, parameters: Mapping[str, Parameter | None], key: str, *, default: bool) -> bool:
    """Raises RequestError for what is neither true nor false: "false" would count as true."""
    value = parameters.get(key)
    if value is None:
        return default
    if value not in (True, False):  # 1 and 0 are
        raise RequestError(f"{where}: {key} is true or false, got {quoted(value, 40)}")
    return bool(value)


def encode_request(request: InferRequest) -> HttpBody:
    """The same request with every tensor raw or named by its location."""
    inputs, buffers = [], []
    for tensor in request.inputs:
        data = tensor.data
        if isinstance(data, TensorLocation):
            inputs.append(_entry(tensor.name, tensor.datatype, tensor.shape, data.parameters))
            continue
        raw = memoryview(data) if isinstance(data, (bytes, memoryview)) else tensor_bytes(tensor_values(tensor))
        buffers.append(raw)
        inputs.append(_entry(tensor.name, tensor.datatype, tensor.shape, {"binary_data_size": len(raw)}))
    parameters = {**request.parameters, "binary_data_output": request.binary_output}
    outputs = [
        {"name": o.name, "parameters": o.location.parameters if o.location else {"binary_data": o.binary}}
        for o in request.outputs
    ]
    header = {"id": request.id, "parameters": parameters, "inputs": inputs, "outputs": outputs}
    return _join(header, buffers)


def encode_response(
    model: str,
    version: str,
    request: InferRequest,
    outputs: Mapping[str, Array],
    parameters: Mapping[str, Parameter],
    stored: Mapping[str, TensorLocation],
) -> HttpBody:
    """The outputs in their order; each raw, JSON or stored in shared memory as the request wants it.

    JSON has no NaN or infinity: they become null.
    """
    binary = {output.name: output.binary for output in request.outputs}
    entries, buffers = [], []
    for name, values in outputs.items():
        datatype = datatype_name(values.dtype)
        if name in stored:
            entries.append(_entry(name, datatype, values.shape, stored[name].parameters))
        elif binary.get(name, request.binary_output):
            data = tensor_bytes(values)
            buffers.append(data)
            entries.append(_entry(name, datatype, values.shape, {"binary_data_size": len(data)}))
        else:
            entries.append({"name": name, "datatype": datatype, "shape": values.shape, "data": _json_items(values)})
    header: dict[str, Any] = {"model_name": model, "model_version": version}
    if request.id:
        header["id"] = request.id
    if parameters:
        header["parameters"] = parameters
    header["outputs"] = entries
    return _join(header, buffers)


def _entry(name: str, datatype: str, shape: Sequence[int], parameters: dict[str, Parameter]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": parameters}


def _join(header: dict[str, Any], buffers: list[memoryview]) -> HttpBody:
    text = _encoder.encode(header)
    return HttpBody(b"".join([text, *buffers]), len(text) if buffers else None)


def _json_items(values: Array) -> list[Any]:
    if values.dtype == numpy_dtype("BF16"):
        values = values.astype(np.float32)
    items: list[Any] = values.reshape(-1).tolist()
    return items


def _parse_json(decoder: msgspec.json.Decoder[Any], text: memoryview, where: str) -> Any:
    try:
        return decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(f"{where}: {error}") from None
    except RecursionError:
        raise RequestError(f"{where}: JSON is nested too deeply") from None


_ITEM: dict[str, type] = {"b": bool, "u": int, "i": int, "f": float, "V": float}


@cache
def _decoder(item: type, depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = item
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


def _typed_data(tensor: _Input) -> Array | list[bytes]:
    """JSON data, flat or nested like the shape, as a flat array of the declared datatype or a list of strings."""
    where = f"input {quoted(tensor.name)}"
    item = str if tensor.datatype == BYTES else _ITEM[numpy_dtype(tensor.datatype).kind]
    text = memoryview(tensor.data)
    if not text:
        raise RequestError(f"{where}: has neither data nor binary_data_size")
    brackets = _OPENING.match(text)
    depth = max(1, brackets[0].count(b"[")) if brackets else 1
    if depth > MAX_RANK:
        raise RequestError(f"{where}: data is nested deeper than {MAX_RANK} dimensions")
    items = _parse_json(_decoder(item, depth), text, f"{where}: data")
    if item is str:
        return _flat_strings(where, items, depth, tensor.shape)
    dtype = numpy_dtype(tensor.datatype)
    try:
        with np.errstate(over="raise"):
            wide = np.dtype(np.float64) if dtype.kind in "fV" else dtype  # narrowing a float then raises
            values = np.array(items, wide).astype(dtype)
    except (OverflowError, FloatingPointError):
        raise RequestError(f"{where}: a number does not fit {tensor.datatype}") from None
    except ValueError:
        raise RequestError(f"{where}: rows of data differ in length") from None
    _check_nesting(where, values.shape, tensor.shape)
    return values.reshape(-1)


def _flat_strings(where: str, items: list[Any], depth: int, shape: tuple[int, ...]) -> list[bytes]:
    nesting = [len(items)]
    for _ in range(depth - 1):
        lengths = set(map(len, items))
        if len(lengths) > 1:
            raise RequestError(f"{where}: rows of data differ in length")
        nesting += lengths or {0}
        items = list(chain.from_iterable(items))
    _check_nesting(where, tuple(nesting), shape)
    return [item.encode() for item in items]


def _check_nesting(where: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
    """Raises RequestError. Flat data fits any shape."""
    if len(found) > 1 and found != shape:
        raise RequestError(f"{where}: data is nested as {list(found)}, shape says {list(shape)}")
