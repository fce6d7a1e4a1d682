"""Lies about the fields of an inference request, by protocol: what is altered, and what the error says."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tritonclient.grpc as triton_grpc
from native_http import post
from running_daemon import X

PATH = "/v2/models/mlp/infer"
pb = triton_grpc.service_pb2
RAW = X.tobytes()
ROWS, WIDTH = X.shape


class Lie(NamedTuple):
    """`tell` alters a request, and `says` is part of the answer's text."""

    tell: Callable[[Any], object]
    says: str


def put(key: str, value: Any) -> Callable[[Any], object]:
    """Set a field of the first input."""
    return lambda request: request["inputs"][0].__setitem__(key, value)


def drop(key: str) -> Callable[[Any], object]:
    return lambda request: request["inputs"][0].pop(key)


def whole(key: str, value: Any) -> Callable[[Any], object]:
    """Set a field of the request."""
    return lambda request: request.__setitem__(key, value)


def parameter(key: str, value: Any) -> Callable[[Any], object]:
    return lambda request: request["inputs"][0].setdefault("parameters", {}).__setitem__(key, value)


SHAPE = "'x' has shape [1…8, 16], got "
# Of every protocol: fields of the input, as JSON and as messages have them.
SHAPES: dict[str, tuple[list[int], str]] = {
    "negative": ([-5, 16], SHAPE + "[-5, 16]"),
    "both negative": ([-5, -16], SHAPE + "[-5, -16]"),
    "huge": ([1 << 40, 16], SHAPE),
    "overflows": ([1 << 62, 1 << 62], SHAPE),
    "overflows to the right size": ([(1 << 62) + 5, 16], SHAPE),
    "least": ([-(1 << 63), 16], SHAPE),
    "empty": ([], SHAPE + "[]"),
    "flat": ([80], SHAPE + "[80]"),
    "of a zero": ([0, 16], SHAPE + "[0, 16]"),
    "of other rows": ([4, 16], "'x'"),
    "one more": ([5, 16, 1], SHAPE + "[5, 16, 1]"),
    "of rank 16": ([1] * 16, SHAPE),
    "of rank 1,000": ([1] * 1000, "input 'x': 1000 dimensions; a tensor has 16 at most"),
    "turned": ([16, 5], SHAPE + "[16, 5]"),
}
DATATYPES = {
    "other": ("INT32", "'x'"),
    "wider": ("FP64", "'x' is FP32, got 'FP64'"),
    "strings": ("BYTES", "'x'"),
    "small letters": ("fp32", "fp32"),
    "empty": ("", "''"),
    "unknown": ("FP33", "FP33"),
    "long": ("F" * (1 << 16), "FFFF"),
    "not ASCII": ("ФП32", "ФП32"),
}
NAMES = {
    "other": ("w", "no input 'w'; it takes x"),
    "empty": ("", "no input ''; it takes x"),
    "of a megabyte": ("x" * (1 << 20), "no input 'xxx"),
    "of control characters": ("x\r\n\0\x1b[2J", "no input 'x\\r\\n\\x00\\x1b[2J'; it takes x"),
    "like it": ("х", "no input 'х'; it takes x"),  # a Cyrillic letter
}
NO_REGION = {"shared_memory_region": "none", "shared_memory_byte_size": 320}
LOCATIONS = {
    "no such region": (NO_REGION, "shared memory"),
    "no name": ({"shared_memory_byte_size": 320}, "'x'"),
    "no size": ({"shared_memory_region": "none"}, "'x'"),
    "negative size": ({"shared_memory_region": "none", "shared_memory_byte_size": -1}, "'x'"),
    "negative offset": (
        {"shared_memory_region": "none", "shared_memory_byte_size": 320, "shared_memory_offset": -8},
        "'x'",
    ),
}

AS_JSON: dict[str, Lie] = {
    **{f"shape {how}": Lie(put("shape", shape), says) for how, (shape, says) in SHAPES.items()},
    **{f"datatype {how}": Lie(put("datatype", kind), says) for how, (kind, says) in DATATYPES.items()},
    **{f"name {how}": Lie(put("name", name), says) for how, (name, says) in NAMES.items()},
    "shape beyond 64 bits": Lie(put("shape", [1 << 70, 16]), "input 'x': a dimension is beyond 64 bits"),
    "shape of a text": Lie(put("shape", "5"), "$.inputs[0].shape"),
    "shape of texts": Lie(put("shape", ["5", "16"]), "$.inputs[0].shape[0]"),
    "shape of a fraction": Lie(put("shape", [5.5, 16]), "$.inputs[0].shape[0]"),
    "shape null": Lie(put("shape", None), "$.inputs[0].shape"),
    "shape missing": Lie(drop("shape"), "shape"),
    "datatype missing": Lie(drop("datatype"), "datatype"),
    "datatype a number": Lie(put("datatype", 32), "$.inputs[0].datatype"),
    "name missing": Lie(drop("name"), "name"),
    "name a number": Lie(put("name", 7), "$.inputs[0].name"),
    "data missing": Lie(drop("data"), "'x'"),
    "data null": Lie(put("data", None), "'x'"),
    "data empty": Lie(put("data", []), "'x'"),
    "data short": Lie(put("data", X.ravel().tolist()[:-1]), "'x'"),
    "data long": Lie(put("data", [*X.ravel().tolist(), 0.0]), "'x'"),
    "data of texts": Lie(put("data", ["1.0"] * 80), "'x'"),
    "data of a null": Lie(put("data", [None, *X.ravel().tolist()[1:]]), "'x'"),
    "data of a truth": Lie(put("data", [True, *X.ravel().tolist()[1:]]), "'x'"),
    "data of an object": Lie(put("data", {"0": 1.0}), "'x'"),
    "data a number": Lie(put("data", 1.0), "'x'"),
    "data ragged": Lie(put("data", [[1.0] * 16, [1.0]]), "'x'"),
    "data nested deep": Lie(put("data", json.loads("[" * 100 + "]" * 100)), "'x'"),
    "data beyond a double": Lie(put("data", "1e999"), "'x'"),
    "binary size without bytes": Lie(parameter("binary_data_size", 320), "'x'"),
    "inputs missing": Lie(lambda request: request.pop("inputs"), "inputs"),
    "inputs none": Lie(whole("inputs", []), "'x' is missing; it takes x"),
    "inputs null": Lie(whole("inputs", None), "$.inputs"),
    "inputs an object": Lie(whole("inputs", {}), "$.inputs"),
    "inputs twice": Lie(lambda request: request["inputs"].append(request["inputs"][0]), "'x' is given twice"),
    "inputs many": Lie(
        whole("inputs", [{"name": f"x{i}", "shape": [1], "datatype": "FP32", "data": [1.0]} for i in range(1000)]),
        "no input 'x0'",
    ),
    "outputs unknown": Lie(whole("outputs", [{"name": "z"}]), "no output 'z'; it gives y"),
    "outputs twice": Lie(whole("outputs", [{"name": "y"}, {"name": "y"}]), "'y' is asked for twice"),
    "outputs a text": Lie(whole("outputs", "y"), "$.outputs"),
    "id a number": Lie(whole("id", 7), "$.id"),
    "parameters a list": Lie(whole("parameters", []), "$.parameters"),
    "timeout negative": Lie(whole("parameters", {"timeout": -1}), "'timeout'"),
    "timeout huge": Lie(whole("parameters", {"timeout": 1 << 62}), "'timeout'"),
    "timeout a truth": Lie(whole("parameters", {"timeout": True}), "'timeout'"),
    "timeout not ASCII": Lie(whole("parameters", {"timeout": "٣"}), "'timeout'"),
    "priority negative": Lie(whole("parameters", {"priority": -1}), "'priority'"),
}

# Of the binary extension: the fields of JSON, with bytes behind it.
AS_BINARY: dict[str, Lie] = {
    **{f"shape {how}": Lie(put("shape", shape), says) for how, (shape, says) in SHAPES.items()},
    **{f"datatype {how}": Lie(put("datatype", kind), says) for how, (kind, says) in DATATYPES.items()},
    "size beyond the body": Lie(parameter("binary_data_size", 321), "binary_data_size is 321, 320 bytes are left"),
    "size of 2^62": Lie(parameter("binary_data_size", 1 << 62), "bytes are left in the body"),
    "size of 2^70": Lie(parameter("binary_data_size", 1 << 70), "binary_data_size"),
    "size short": Lie(parameter("binary_data_size", 316), "320 bytes follow the JSON part"),
    "size negative": Lie(parameter("binary_data_size", -320), "binary_data_size must be a count of bytes, got -320"),
    "size a text": Lie(parameter("binary_data_size", "320"), "binary_data_size must be a count of bytes"),
    "size a fraction": Lie(parameter("binary_data_size", 320.5), "binary_data_size must be a count of bytes"),
    "size a truth": Lie(parameter("binary_data_size", True), "binary_data_size must be a count of bytes"),
    "size null": Lie(parameter("binary_data_size", None), "'x'"),
    "data twice": Lie(put("data", [1.0]), "'x': has both data and binary_data_size"),
    "inputs twice": Lie(lambda request: request["inputs"].append(request["inputs"][0]), "binary_data_size is 320"),
    **{
        f"shared memory {how}": Lie(lambda request, p=place: request["inputs"][0].update(parameters=p), says)
        for how, (place, says) in (
            LOCATIONS | {"no such region": (NO_REGION, "320 bytes follow the JSON part")}
        ).items()
    },
}


def json_request() -> dict[str, Any]:
    return {"inputs": [{"name": "x", "shape": [ROWS, WIDTH], "datatype": "FP32", "data": X.ravel().tolist()}]}


def binary_request() -> dict[str, Any]:
    entry = {"name": "x", "shape": [ROWS, WIDTH], "datatype": "FP32", "parameters": {"binary_data_size": len(RAW)}}
    return {"inputs": [entry]}


def http_lies() -> Iterator[tuple[str, bytes, str]]:
    """Name, request as bytes, and part of the error."""
    for name, lie in AS_JSON.items():
        request = json_request()
        lie.tell(request)
        yield f"JSON, {name}", post(json.dumps(request).encode(), None, path=PATH), lie.says
    good = json.dumps(json_request())
    for literal in ("NaN", "Infinity", "-Infinity", "0x10", "1e", "01", "--1", "1,", "'1'"):
        data = good.replace(json.dumps(float(X[0, 0])), literal, 1).encode()
        yield f"JSON, number {literal}", post(data, None, path=PATH), ""
    for name, cut in (("half", len(good) // 2), ("one byte short", len(good) - 1), ("empty", 0)):
        yield f"JSON, {name}", post(good[:cut].encode(), None, path=PATH), ""
    yield "JSON, not UTF-8", post(good.encode().replace(b'"x"', b'"\xff\xfe"'), None, path=PATH), ""
    yield "JSON, deep", post(b"[" * 100_000, None, path=PATH), ""
    for name, lie in AS_BINARY.items():
        request = binary_request()
        lie.tell(request)
        head = json.dumps(request).encode()
        yield f"binary, {name}", post(head + RAW, len(head), path=PATH), lie.says
    head = json.dumps(binary_request()).encode()
    for size in (-1, 0, 1, len(head) - 1, len(head) + 1, len(head) + len(RAW), len(head) + len(RAW) + 1, 1 << 62):
        yield f"binary, head of {size}", post(head + RAW, size, path=PATH), ""
    yield "binary, no bytes", post(head, len(head), path=PATH), "0 bytes are left in the body"


def grpc_request(*, typed: bool) -> Any:
    request = pb.ModelInferRequest(model_name="mlp")
    entry = request.inputs.add(name="x", datatype="FP32", shape=[ROWS, WIDTH])
    if typed:
        entry.contents.fp32_contents.extend(X.ravel().tolist())
    else:
        request.raw_input_contents.append(RAW)
    return request


def grpc_lies() -> Iterator[tuple[str, Any, str]]:
    """Name, message, and part of the error."""
    for typed in (False, True):
        way = "typed" if typed else "raw"
        fields = [("shape", how, shape, says) for how, (shape, says) in SHAPES.items()]
        fields += [("datatype", how, kind, says) for how, (kind, says) in DATATYPES.items()]  # type: ignore[misc]
        fields += [("name", how, name, says) for how, (name, says) in NAMES.items()]  # type: ignore[misc]
        for field, how, value, says in fields:
            request = grpc_request(typed=typed)
            if field == "shape":
                request.inputs[0].shape[:] = value
            else:
                setattr(request.inputs[0], field, value)
            yield f"{way}, {field} {how}", request, "" if typed and field == "datatype" else says
        for how, (place, says) in LOCATIONS.items():
            request = grpc_request(typed=typed)
            for key, value in place.items():
                kind = "string_param" if isinstance(value, str) else "int64_param"
                setattr(request.inputs[0].parameters[key], kind, value)
            yield f"{way}, shared memory {how}", request, "" if typed or how == "no such region" else says
    yield from _about_contents()


def _about_contents() -> Iterator[tuple[str, Any, str]]:
    changes: dict[str, tuple[bool, Callable[[Any], object], str]] = {
        "raw, bytes short": (
            False,
            lambda r: r.raw_input_contents.__setitem__(0, RAW[:-1]),
            "takes 320 bytes, got 319",
        ),
        "raw, bytes long": (False, lambda r: r.raw_input_contents.__setitem__(0, RAW + b"\0"), "got 321"),
        "raw, bytes empty": (False, lambda r: r.raw_input_contents.__setitem__(0, b""), "takes 320 bytes, got 0"),
        "raw, bytes missing": (False, lambda r: r.ClearField("raw_input_contents"), "'x'"),
        "raw, bytes twice": (False, lambda r: r.raw_input_contents.append(RAW), "1 inputs come raw, but 2"),
        "raw, and typed": (False, lambda r: r.inputs[0].contents.fp32_contents.append(1.0), "has both contents"),
        "raw, input twice": (False, lambda r: r.inputs.append(copy.copy(r.inputs[0])), "2 inputs come raw, but 1"),
        "raw, no inputs": (False, lambda r: r.ClearField("inputs"), ""),
        "raw, nothing": (
            False,
            lambda r: (r.ClearField("inputs"), r.ClearField("raw_input_contents")),
            "'x' is missing",
        ),
        "raw, output unknown": (False, lambda r: r.outputs.add(name="z"), "no output 'z'; it gives y"),
        "raw, outputs twice": (False, lambda r: (r.outputs.add(name="y"), r.outputs.add(name="y")), "'y'"),
        "raw, timeout": (False, lambda r: setattr(r.parameters["timeout"], "int64_param", -1), "'timeout'"),
        "raw, priority": (False, lambda r: setattr(r.parameters["priority"], "bool_param", True), "'priority'"),
        "typed, short": (True, lambda r: r.inputs[0].contents.fp32_contents.pop(), "takes 80 elements, got 79"),
        "typed, long": (True, lambda r: r.inputs[0].contents.fp32_contents.append(1.0), "takes 80 elements, got 81"),
        "typed, other field": (True, lambda r: r.inputs[0].contents.int_contents.append(1), "stands in fp32_contents"),
        "typed, nothing": (True, lambda r: r.inputs[0].ClearField("contents"), "'x'"),
        "typed, doubles": (True, _doubles, "stands in fp32_contents, got fp64_contents"),
    }
    for name, (typed, change, says) in changes.items():
        request = grpc_request(typed=typed)
        change(request)
        yield name, request, says


def _doubles(request: Any) -> None:
    request.inputs[0].contents.Clear()
    request.inputs[0].contents.fp64_contents.extend(X.ravel().tolist())
