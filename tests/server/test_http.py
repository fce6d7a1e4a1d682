"""The HTTP routes, over an engine that computes with numpy."""

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from veltair.errors import DeadlineError, OverloadedError, QueryError, RequestError, WorkerDiedError
from veltair.server.protocol.http_codec import decode_request
from veltair.server.protocol.json_parser import INLINE_BYTES, JsonParser

from .front import LIMIT, MS, Front, request, run


def test_infer() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", json=request(id="a7"))
        assert answer.json() == {
            "model_name": "sums",
            "model_version": "1",
            "id": "a7",
            "outputs": [
                {"name": "sum", "datatype": "FP32", "shape": [1, 1], "data": [10.0]},
                {"name": "ids_sum", "datatype": "INT64", "shape": [1, 1], "data": [104]},
            ],
        }
        versioned = await front.http.post(
            "/v2/models/sums/versions/1/infer", json=request(outputs=[{"name": "ids_sum"}])
        )
        assert [output["name"] for output in versioned.json()["outputs"]] == ["ids_sum"]

    run(test)


def test_the_answer_tells_how_it_was_served_when_asked() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", json=request(parameters={"veltair_trace": True}))
        parameters = answer.json()["parameters"]
        assert parameters["queue_ns"] == 3 * MS
        assert parameters["execute_ns"] == 2 * MS
        (block,) = json.loads(parameters["blocks"])
        assert block == {"start": 0, "stop": 3, "cores": 2, "versions": [0, 2, 2], "elapsed_ns": 2 * MS, "queries": 1}

    run(test)


def test_the_timeout_parameter_becomes_a_deadline() -> None:
    async def test(front: Front) -> None:
        before = time.monotonic_ns()
        await front.http.post("/v2/models/sums/infer", json=request(parameters={"timeout": 60_000_000}))
        await front.good()
        limit, none = front.engine.deadlines
        assert limit is not None and before <= limit - 60_000 * MS <= time.monotonic_ns()
        assert none is None

    run(test)


@pytest.mark.parametrize(
    ("model", "tenant", "status"),
    [("one", "", 200), ("shared", "two", 200), ("shared", "", 404), ("shared", "sums", 404), ("one", "two", 404)],
)
def test_tenants_that_share_a_model(model: str, tenant: str, status: int) -> None:
    async def test(front: Front) -> None:
        headers = {"Veltair-Tenant": tenant} if tenant else {}
        by_header = await front.http.post(f"/v2/models/{model}/infer", json=request(), headers=headers)
        by_parameter = await front.http.post(
            f"/v2/models/{model}/infer", json=request(parameters={"tenant": tenant} if tenant else {})
        )
        assert by_header.status_code == by_parameter.status_code == status
        if status == 200:
            assert front.metrics.tenants[tenant or model].outcomes["ok"] == 2

    run(test)


FAILURES = [
    (OverloadedError("no room"), 503, "no room"),
    (DeadlineError("too late"), 504, "too late"),
    (WorkerDiedError("the worker died"), 500, "the worker died"),
    (QueryError("kernel failed"), 500, "kernel failed"),
    (RequestError("bad"), 400, "bad"),
    (ZeroDivisionError("/secret/path"), 500, "internal error"),
]


@pytest.mark.parametrize(("failure", "status", "text"), FAILURES)
def test_the_engines_errors(failure: Exception, status: int, text: str) -> None:
    async def test(front: Front) -> None:
        front.engine.failure = failure
        answer = await front.http.post("/v2/models/sums/infer", json=request())
        assert answer.status_code == status
        assert answer.json() == {"error": text}
        assert (answer.headers.get("Retry-After") is not None) == (status == 503)
        front.engine.failure = None
        await front.good()

    run(test)


NOT_THERE = [
    ("GET", "/nowhere", 404),
    ("GET", "/v2/models/sums/infer", 405),
    ("POST", "/v2/health/live", 405),
    ("GET", "/v2/models/nope", 404),
    ("GET", "/v2/models/nope/ready", 404),
    ("GET", "/v2/models/sums/versions/2", 404),
    ("GET", "/v2/models/sums/versions/2/ready", 404),
    ("GET", "/v2/models/nope/config", 404),
    ("GET", "/v2/models/nope/stats", 404),
    ("POST", "/v2/models/nope/infer", 404),
    ("POST", "/v2/repository/models/sums/load", 501),
    ("POST", "/v2/repository/models/sums/unload", 501),
    ("POST", "/v2/repository/models/sums/rename", 404),
    ("GET", "/v2/systemsharedmemory/status", 501),
    ("POST", "/v2/systemsharedmemory/region/a/register", 501),
    ("GET", "/v2/cudasharedmemory/region/a/status", 501),
    ("GET", "/v2/trace/setting", 501),
    ("POST", "/v2/models/sums/trace/setting", 501),
    ("GET", "/v2/logging", 501),
    ("GET", "/admin/nope.js", 404),
    ("GET", "/admin/..%2Fhttp.py", 404),
]


@pytest.mark.parametrize(("method", "path", "status"), NOT_THERE)
def test_every_refusal_is_an_error_object(method: str, path: str, status: int) -> None:
    async def test(front: Front) -> None:
        body = json.dumps(request()).encode() if method == "POST" else None
        answer = await front.http.request(method, path, content=body)
        assert answer.status_code == status
        assert list(answer.json()) == ["error"] and answer.json()["error"]

    run(test)


BAD_BODIES = [
    (b"", {}, 400, "truncated"),
    (b"{", {}, 400, "truncated"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "many"}, 400, "count of bytes"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "-1"}, 400, "count of bytes"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "9" * 30}, 400, "count of bytes"),
    (json.dumps(request()).encode(), {"Inference-Header-Content-Length": "100000000"}, 400, "100000000"),
    (b"no gzip", {"Content-Encoding": "gzip"}, 400, "not valid gzip"),
    (b"x", {"Content-Encoding": "br"}, 501, "br"),
    (gzip.compress(b"0" * (LIMIT + 1)), {"Content-Encoding": "gzip"}, 413, "unpacks to more"),
    (b"0" * (LIMIT + 1), {}, 413, f"{LIMIT} are allowed"),
]


@pytest.mark.parametrize(("body", "headers", "status", "message"), BAD_BODIES)
def test_a_bad_body_and_then_a_good_one(body: bytes, headers: dict[str, str], status: int, message: str) -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", content=body, headers=headers)
        assert answer.status_code == status
        assert message in answer.json()["error"]
        await front.good()

    run(test)


def test_an_oversized_body_is_refused_from_its_length_and_when_chunked() -> None:
    async def test(front: Front) -> None:
        taken = 0

        async def endless() -> AsyncIterator[bytes]:
            nonlocal taken
            while True:
                taken += 1 << 20
                assert taken < LIMIT + (4 << 20), "it reads on"
                yield bytes(1 << 20)

        answer = await front.http.post(
            "/v2/models/sums/infer", content=endless(), headers={"Content-Length": str(LIMIT + 1)}
        )
        assert answer.status_code == 413 and answer.headers["Connection"] == "close"

    run(test)

    async def chunked() -> None:
        front, sent, taken = Front(), [], 0

        async def receive() -> dict[str, Any]:
            nonlocal taken
            taken += 1 << 20
            return {"type": "http.request", "body": bytes(1 << 20), "more_body": True}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v2/models/sums/infer", "headers": [], "query_string": b"",
            "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("a", 1), "client": ("b", 2),
        }  # fmt: skip
        await front.app(scope, receive, send)
        assert sent[0]["status"] == 413
        assert taken == LIMIT + (1 << 20)

        taken = 0
        scope["headers"] = [(b"content-length", str(LIMIT + 1).encode())]
        sent.clear()
        await front.app(scope, receive, send)
        assert sent[0]["status"] == 413
        assert taken == 0
        await front.http.aclose()

    asyncio.run(chunked())


def test_a_client_that_leaves_cancels_its_query() -> None:
    async def test(front: Front) -> None:
        front.engine.gate = asyncio.Event()
        body = json.dumps(request()).encode()
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        leave, sent = asyncio.Event(), []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop()
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "method": "POST", "path": "/v2/models/sums/infer", "headers": [], "query_string": b"",
            "root_path": "", "scheme": "http", "http_version": "1.1", "server": ("a", 1), "client": ("b", 2),
        }  # fmt: skip
        call = asyncio.create_task(front.app(scope, receive, send))
        while not front.engine.deadlines:
            await asyncio.sleep(0)
        leave.set()
        await call
        assert front.engine.cancelled == 1
        assert front.metrics.tenants["sums"].outcomes["cancelled"] == 1
        assert sent[0]["status"] == 499
        front.engine.gate = None
        await front.good()

    run(test)


def test_health_follows_the_engine() -> None:
    async def test(front: Front) -> None:
        paths = ("/v2/health/ready", "/v2/models/sums/ready", "/v2/models/sums/versions/1/ready")
        assert [(await front.http.get(path)).status_code for path in paths] == [200] * 3
        front.engine.ready = False
        assert [(await front.http.get(path)).status_code for path in paths] == [503] * 3
        assert (await front.http.get("/v2/health/live")).status_code == 200
        assert (await front.http.post("/v2/repository/index")).json()[0]["state"] == "UNAVAILABLE"
        assert (await front.http.post("/v2/repository/index", content=b'{"ready": true}')).json() == []
        assert (await front.http.post("/v2/repository/index", content=b"[")).status_code == 400

    run(test)


def test_what_is_told_of_a_model() -> None:
    async def test(front: Front) -> None:
        assert (await front.http.get("/v2/models/sums")).json() == {
            "name": "sums",
            "versions": ["1"],
            "platform": "veltair",
            "inputs": [
                {"name": "x", "datatype": "FP32", "shape": [-1, 4]},
                {"name": "ids", "datatype": "INT64", "shape": [-1, 2]},
            ],
            "outputs": [
                {"name": "sum", "datatype": "FP32", "shape": [-1, 1]},
                {"name": "ids_sum", "datatype": "INT64", "shape": [-1, 1]},
            ],
        }
        config = (await front.http.get("/v2/models/sums/config")).json()
        assert config["max_batch_size"] == 8
        assert config["input"][0] == {"name": "x", "data_type": "TYPE_FP32", "dims": [4]}
        assert json.loads(config["parameters"]["id_range"]["string_value"]) == {"ids": [0, 99]}
        await front.good()
        front.engine.failure = DeadlineError("late")
        await front.http.post("/v2/models/sums/infer", json=request())
        for path in ("/v2/models/sums/stats", "/v2/models/sums/versions/1/stats"):
            (stats,) = (await front.http.get(path)).json()["model_stats"]
            assert (stats["inference_count"], stats["execution_count"]) == (1, 1)
            assert stats["inference_stats"]["queue"] == {"count": 1, "ns": 3 * MS}
            assert stats["inference_stats"]["fail"]["count"] == 1
        everything = (await front.http.get("/v2/models/stats")).json()["model_stats"]
        assert [stats["name"] for stats in everything] == ["sums", "one", "two"]

    run(test)


def large(batch: int, **change: Any) -> bytes:
    """JSON well above what is parsed in this process."""
    x = np.linspace(0, 1, 4 * batch, dtype=np.float32)
    ids = np.arange(2 * batch) % 100
    inputs = [
        {"name": "x", "shape": [batch, 4], "datatype": "FP32", "data": x.tolist()},
        {"name": "ids", "shape": [batch, 2], "datatype": "INT64", "data": ids.tolist()},
    ]
    return json.dumps({"inputs": inputs, **change}).encode()


def test_large_json_is_parsed_elsewhere_with_the_same_result() -> None:
    async def main() -> None:
        parser, body = JsonParser(), large(4096, id="big", outputs=[{"name": "sum"}])
        assert len(body) > INLINE_BYTES
        try:
            there, here = await parser.parse(body), decode_request(body)
            assert (there.id, there.outputs, there.binary_output) == (here.id, here.outputs, here.binary_output)
            for a, b in zip(there.inputs, here.inputs, strict=True):
                assert (a.name, a.datatype, a.shape) == (b.name, b.datatype, b.shape)
                assert bytes(a.data) == np.asarray(b.data).tobytes()
            with pytest.raises(RequestError, match="truncated"):
                await parser.parse(body[:-1])
            first = parser._child
            assert first is not None
            first.kill()
            await first.wait()
            assert (await parser.parse(body)).id == "big"  # by another child
            hung = asyncio.create_task(parser.parse(body))
            await asyncio.sleep(0)
            hung.cancel()
            assert (await parser.parse(body)).id == "big"  # what the first left in the pipes harms nobody
        finally:
            await parser.close()

    asyncio.run(main())


def test_large_json_over_http() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", content=large(4096))
        assert answer.status_code == 400 and "1…8" in answer.json()["error"]
        padded = large(1, parameters={"note": "." * INLINE_BYTES})
        answer = await front.http.post("/v2/models/sums/infer", content=padded)
        assert answer.status_code == 200
        await front.good()

    run(test)
