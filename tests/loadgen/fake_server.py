"""A small inference server, independent of the code under test, whose models behave as their names say.

Run as a script, it prints the HTTP and the gRPC port, then serves until it is killed. A model called `later_X` answers
its first query correctly and behaves as `X` afterwards. GET /v2/models/{m}/stats returns what has arrived.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import sys
from collections import defaultdict
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor

INPUTS = {
    "fixed": [("x", "FP32", [2, 3])],
    "odd": [("x", "FP8", [1])],
    "words": [("s", "BYTES", [-1, 1]), ("user", "INT64", [-1, 1])],
    "wild": [("x", "FP32", [-1, -1])],
}
DEFAULT = [("x", "FP32", [-1, 4]), ("ids", "INT64", [-1, 3])]
ID_RANGE = (5, 9)
FEATURES = {"s": {"max_bytes": 30, "separator": ";"}, "user": {}}
WIDTH = {"FP32": np.dtype("<f4"), "INT64": np.dtype("<i8")}
SERIAL_S = 0.005  # of exclusive time that a query of `serial` takes

stats: dict[str, dict[str, int]] = defaultdict(lambda: {"queries": 0, "samples": 0, "bad": 0, "waiting_max": 0})
waiting: dict[str, int] = defaultdict(int)
serial = asyncio.Lock()
regions: dict[str, mmap.mmap] = {}


def register(name: str, key: str, size: int) -> None:
    with Path(f"/dev/shm/{key.removeprefix('/')}").open("rb") as file:
        regions[name] = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)


def shared(name: str, offset: int, size: int) -> bytes:
    return regions[name][offset : offset + size]


def complaint(inputs: list[tuple[str, str, list[int], bytes]], model: str) -> str:
    """What is wrong with a request's tensors: (name, datatype, shape, bytes)."""
    wanted = INPUTS.get(model, DEFAULT)
    if [(i[0], i[1]) for i in inputs] != [(w[0], w[1]) for w in wanted]:
        return "wrong inputs"
    for (name, datatype, shape, data), (_, _, spec) in zip(inputs, wanted, strict=True):
        if len(shape) != len(spec) or any(s not in (-1, n) for n, s in zip(shape, spec, strict=True)):
            return f"wrong shape {shape}"
        if datatype == "BYTES":
            texts = deserialize_bytes_tensor(data)
            if len(texts) != np.prod(shape) or not all(t.replace(b";", b"0").isdigit() and len(t) <= 30 for t in texts):
                return f"wrong strings {texts}"
            continue
        if len(data) != np.prod(shape) * WIDTH[datatype].itemsize:
            return f"wrong byte count of {name}"
        values = np.frombuffer(data, WIDTH[datatype])
        if name == "ids" and not ((values >= ID_RANGE[0]) & (values <= ID_RANGE[1])).all():
            return "id out of range"
        if datatype == "FP32" and not (np.isfinite(values).all() and values.any()):
            return "not normal numbers"
    return ""


async def behave(model: str, inputs: list[tuple[str, str, list[int], bytes]]) -> tuple[str, str]:
    """Waits as the model would and returns what it does: (behaviour, complaint)."""
    own = stats[model]
    own["queries"] += 1
    wrong = complaint(inputs, model)
    own["bad"] += bool(wrong)
    if not wrong:
        own["samples"] += inputs[0][2][0]
    what = model
    if model.startswith("later_"):
        what = "ok" if own["queries"] == 1 else model.removeprefix("later_")
    if what == "third":
        what = "refuse" if own["queries"] % 3 == 0 else "ok"
    waiting[model] += 1
    own["waiting_max"] = max(own["waiting_max"], waiting[model])
    try:
        if what == "serial":
            async with serial:
                await asyncio.sleep(SERIAL_S)
        if what == "hang":
            await asyncio.Event().wait()
    finally:
        waiting[model] -= 1
    return what, wrong


def answer(status: int, body: bytes, *headers: str, length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body) if length is None else length}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


class Http:
    """One kept-alive connection after the other, spoken by hand."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self.exchange(reader, writer):
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        request, *lines = head.strip().split("\r\n")
        verb, path, _ = request.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        model = path.split("/")[3]
        if path.startswith("/v2/systemsharedmemory/region/"):
            name, action = path.split("/")[4:]
            if action == "register":
                register(name, **{"size" if k == "byte_size" else k: v for k, v in json.loads(body).items()})
            else:
                regions.pop(name).close()
            writer.write(answer(200, b"{}"))
        elif model == "nobody":
            writer.write(answer(404, b'{"error": "unknown model `nobody`"}'))
        elif verb == "GET":
            writer.write(answer(200, json.dumps(self.get(path, model)).encode()))
        else:
            return await self.infer(model, headers, body, writer)
        return True

    def get(self, path: str, model: str) -> object:
        if path.endswith("/stats"):
            return stats[model]
        if path.endswith("/config"):
            ranges = json.dumps({"ids": ID_RANGE})
            parameters = {"id_range": ranges, "features": json.dumps(FEATURES)}
            return {"name": model, "parameters": {key: {"string_value": text} for key, text in parameters.items()}}
        spec = INPUTS.get(model, DEFAULT)
        return {"name": model, "inputs": [{"name": n, "datatype": d, "shape": s} for n, d, s in spec]}

    async def infer(self, model: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        split = int(headers["inference-header-content-length"])
        inputs, at = [], split
        for tensor in json.loads(body[:split])["inputs"]:
            parameters = tensor["parameters"]
            if "shared_memory_region" in parameters:
                where = [parameters[f"shared_memory_{part}"] for part in ("region", "offset", "byte_size")]
                data, size = shared(*where), 0
            else:
                size = parameters["binary_data_size"]
                data = body[at : at + size]
            inputs.append((tensor["name"], tensor["datatype"], tensor["shape"], data))
            at += size
        what, wrong = await behave(model, inputs)
        if wrong or at != len(body):
            writer.write(answer(400, json.dumps({"error": wrong}).encode()))
            return True
        large = bytes(300_000)
        match what:
            case "refuse":
                writer.write(answer(503, b'{"error": "queue full"}', "Retry-After: 1"))
            case "deadline":
                writer.write(answer(504, b'{"error": "past its deadline"}'))
            case "internal":
                writer.write(answer(500, b"not even JSON"))
            case "garbage":
                writer.write(b"\x00\xff garbage" * 100)
            case "drop":
                return False
            case "half_head":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Le")
                return False
            case "half_body":
                writer.write(answer(200, large[:1000], length=len(large)))
                return False
            case "chunked":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
            case "overlong":
                writer.write(answer(200, b"0123456789", length=4))
            case "say_close":
                writer.write(answer(200, large, "Connection: close"))
                return False
            case "close_idle":  # answers, then hangs up without a word
                writer.write(answer(200, large))
                return False
            case _:
                writer.write(answer(200, large))
        return True


class Grpc(service_pb2_grpc.GRPCInferenceServiceServicer):
    async def ModelMetadata(self, request, context):  # noqa: N802
        if request.name == "nobody":
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown model `nobody`")
        spec = INPUTS.get(request.name, DEFAULT)
        inputs = [pb.ModelMetadataResponse.TensorMetadata(name=n, datatype=d, shape=s) for n, d, s in spec]
        return pb.ModelMetadataResponse(name=request.name, inputs=inputs)

    async def ModelConfig(self, request, context):  # noqa: N802
        reply = pb.ModelConfigResponse()
        reply.config.parameters["id_range"].string_value = json.dumps({"ids": ID_RANGE})
        reply.config.parameters["features"].string_value = json.dumps(FEATURES)
        return reply

    async def SystemSharedMemoryRegister(self, request, context):  # noqa: N802
        register(request.name, request.key, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, request, context):  # noqa: N802
        regions.pop(request.name).close()
        return pb.SystemSharedMemoryUnregisterResponse()

    async def ModelInfer(self, request, context):  # noqa: N802
        raw, inputs = iter(request.raw_input_contents), []
        for i in request.inputs:
            if name := i.parameters["shared_memory_region"].string_param:
                offset, size = (i.parameters[f"shared_memory_{part}"].int64_param for part in ("offset", "byte_size"))
                data = shared(name, offset, size)
            else:
                data = next(raw)
            inputs.append((i.name, i.datatype, list(i.shape), data))
        what, wrong = await behave(request.model_name, inputs)
        if wrong:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        refusals = {
            "refuse": grpc.StatusCode.UNAVAILABLE,
            "exhausted": grpc.StatusCode.RESOURCE_EXHAUSTED,
            "deadline": grpc.StatusCode.DEADLINE_EXCEEDED,
            "internal": grpc.StatusCode.INTERNAL,
        }
        if what in refusals:
            await context.abort(refusals[what], "queue full")
        return pb.ModelInferResponse(model_name=request.model_name, raw_output_contents=[bytes(300_000)])


async def main() -> None:
    http = await asyncio.start_server(Http(), "127.0.0.1", 0)
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Grpc(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(http.sockets[0].getsockname()[1], port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
    sys.exit(0)
