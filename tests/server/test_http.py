"""The HTTP application in this process, over an engine that computes with numpy."""

import asyncio
import gzip
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from veltair.errors import DeadlineError, OverloadedError, QueryError, RequestError, WorkerDiedError
from veltair.profiles.artifact import SCHEMA, Manifest, Port
from veltair.server import dashboard
from veltair.server.client import Snapshot
from veltair.server.dashboard import Dashboard, busy_shares, runs
from veltair.server.http import application
from veltair.server.messages import BlockRecord, Growth, RunningBlock, Status, TenantCount, WorkerState
from veltair.server.metrics import Metrics
from veltair.server.protocol_http import decode_request
from veltair.server.protocol_parser import INLINE_BYTES, JsonParser
from veltair.server.service import Service
from veltair.types import Machine, QoSTarget

LIMIT = 4 << 20
MS = 1_000_000
MANIFEST = Manifest(
    schema=SCHEMA, model="sums", precision="fp32", tolerance=1e-3, qos_ns=7 * MS, target={}, features=(), max_batch=8,
    batches=(8,), levels=(1.0,), inputs=(Port("x", "float32", (-1, 4)), Port("ids", "int64", (-1, 2), 0, 99)),
    outputs=(Port("sum", "float32", (-1, 1)), Port("ids_sum", "int64", (-1, 1))), buffers=(), arena_bytes=0, layers=(),
    environment={}, source_digest="", kernels_digest="", weights_digest="",
)  # fmt: skip


@dataclass(frozen=True)
class Tenant:
    manifest: Manifest
    qos: QoSTarget


@dataclass(frozen=True)
class Answer:
    outputs: Mapping[str, Any]
    queue_ns: int
    execute_ns: int
    blocks: tuple[BlockRecord, ...]


@dataclass
class NumpyEngine:
    """Adds up. `failure` is raised instead, `gate` waited for first."""

    tenants: Mapping[str, Tenant]
    failure: BaseException | None = None
    gate: asyncio.Event | None = None
    ready: bool = True
    deadlines: list[int | None] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    cancelled: int = 0

    async def infer(self, tenant: str, inputs: Mapping[str, Any], *, deadline_ns: int | None = None) -> Answer:
        self.deadlines.append(deadline_ns)
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.failure is not None:
            raise self.failure
        now = time.monotonic_ns()
        block = BlockRecord(1, tenant, 0, 3, (0, 2, 2), (0, 1), now - 2 * MS, now, True, 1.25)
        self.blocks.append(block)
        sums = {name: inputs[name].sum(axis=1, keepdims=True) for name in ("x", "ids")}
        return Answer({"sum": sums["x"], "ids_sum": sums["ids"]}, 3 * MS, 2 * MS, (block,))

    async def snapshot(self, since: int = 0) -> Snapshot:
        if not self.ready:
            raise OverloadedError("the engine is starting anew")
        done = len(self.blocks)
        status = Status(
            time_ns=time.monotonic_ns(), level=1.25, level_source="observed", conflicts=4, capped_blocks=1, blocks=9,
            scheduler_ns=9000, scheduler_events=3, gap_ns=500, gaps=1, worker_deaths=2,
            tenants={"sums": TenantCount(arrived=done, waiting=5, running=1)},
            running=(RunningBlock(7, "sums", 1, 0, 3, 1, (0, 0, 0), (0, 1), False, 0),),
            workers=(WorkerState(1, "busy", 7, 0), WorkerState(2, "idle", None, 0)),
        )  # fmt: skip
        return Snapshot(status, "fcfs", (0, 1), 2, 1, 0, 0, 8, False, tuple(self.blocks[since:]), done)


class Front:
    def __init__(self) -> None:
        tenants = {
            "sums": Tenant(MANIFEST, QoSTarget(7 * MS)),
            "one": Tenant(replace(MANIFEST, model="shared"), QoSTarget(9 * MS, 0.99)),
            "two": Tenant(replace(MANIFEST, model="shared"), QoSTarget(9 * MS)),
        }
        self.engine = NumpyEngine(tenants)
        self.metrics = Metrics({name: (t.manifest.model, t.qos) for name, t in tenants.items()})
        self.service = Service(self.engine, self.metrics, LIMIT)
        self.dashboard = Dashboard(self.engine, self.metrics, Machine(((0, 1),)), {"version": "0"})
        self.app = application(self.service, self.dashboard)
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://test")

    async def good(self) -> None:
        answer = await self.http.post("/v2/models/sums/infer", json=request())
        assert answer.status_code == 200, answer.text
        assert answer.json()["outputs"][0]["data"] == [10.0]


def request(**change: Any) -> dict[str, Any]:
    inputs = [
        {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]},
        {"name": "ids", "shape": [1, 2], "datatype": "INT64", "data": [[5, 99]]},
    ]
    return {"inputs": inputs, **change}


def run(test: Callable[[Front], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def front() -> AsyncIterator[Front]:
        made = Front()
        try:
            yield made
        finally:
            await made.dashboard.close()
            await made.service.parser.close()
            await made.http.aclose()

    async def main() -> None:
        async with front() as made:
            await test(made)

    asyncio.run(main())


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
        assert block == {"start": 0, "stop": 3, "cores": 2, "versions": [0, 2, 2], "elapsed_ns": 2 * MS}

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


# Metrics


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_metrics() -> None:
    async def test(front: Front) -> None:
        await front.good()
        front.engine.failure = OverloadedError("full")
        await front.http.post("/v2/models/sums/infer", json=request())
        await front.http.post("/v2/models/made-up-by-a-client/infer", json=request())
        await front.http.post("/v2/models/sums/infer", content=b"{")
        page = (await front.http.get("/metrics")).text
        assert "made-up-by-a-client" not in page
        assert all(name.startswith("veltair_") for name in re.findall(r"^(\w+)[{ ]", page, re.MULTILINE))
        found = samples(page)
        sums = {("tenant", "sums"), ("model", "sums")}

        def value(name: str, *labels: tuple[str, str]) -> float:
            return found[name, frozenset(labels)]

        assert value("veltair_requests_total", *sums, ("outcome", "ok")) == 1
        assert value("veltair_requests_total", *sums, ("outcome", "overloaded")) == 1
        assert value("veltair_unknown_model_requests_total") == 1
        assert value("veltair_malformed_requests_total") == 1
        assert value("veltair_request_duration_seconds_count", *sums) == 1
        assert value("veltair_queue_wait_seconds_sum", *sums) == 0.003
        assert value("veltair_code_versions_total", *sums, ("version", "2")) == 2
        assert value("veltair_interference_level", ("source", "observed")) == 1.25
        assert value("veltair_queue_depth", ("tenant", "sums")) == 5
        assert value("veltair_cores_allocated", ("tenant", "sums")) == 2
        assert value("veltair_cores") == 2
        assert value("veltair_conflicts_total") == 4
        assert value("veltair_scheduler_seconds_sum") == 9e-6
        assert value("veltair_workers", ("state", "busy")) == 1
        front.engine.ready = False
        assert "veltair_requests_total" in (await front.http.get("/metrics")).text

    run(test)


def test_the_qos_rate_read_from_the_histogram_is_exact() -> None:
    front = Front()
    counts = front.metrics.tenants["sums"]
    for duration_ns in (7 * MS - 1, 7 * MS, 7 * MS + 1, 90 * MS):
        counts.answered(duration_ns, 0, 0, 1, ())
    found = samples(front.metrics.page(None).decode())
    key = {("tenant", "sums"), ("model", "sums")}
    assert found["veltair_request_duration_seconds_bucket", frozenset({*key, ("le", "0.007")})] == 2
    assert found["veltair_qos_met_total", frozenset(key)] == 2
    assert found["veltair_request_duration_seconds_bucket", frozenset({*key, ("le", "+Inf")})] == 4


# Dashboard


def test_the_page_runs_nothing_from_elsewhere() -> None:
    async def test(front: Front) -> None:
        page = await front.http.get("/admin")
        assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
        assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=|https?://", page.text)
        wanted = re.findall(r'(?:src|href)="(/admin/[^"]+)"', page.text)
        assert len(wanted) >= 5
        while wanted:
            file = await front.http.get(wanted.pop())
            assert file.status_code == 200 and file.headers["Content-Security-Policy"] == policy
            wanted += re.findall(r'from "(/admin/[^"]+)"', file.text)
        again = await front.http.get("/admin", headers={"If-None-Match": page.headers["ETag"]})
        assert again.status_code == 304 and not again.content
        assert "Leon Sorokin" in (await front.http.get("/admin/uPlot.LICENSE.txt")).text

    run(test)


async def next_event(stream: AsyncIterator[bytes]) -> tuple[str, Any]:
    match = re.fullmatch(rb"event: (\w+)\ndata: (.*)\n\n", await anext(stream), re.DOTALL)
    assert match is not None
    return match[1].decode(), json.loads(match[2])


def test_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "PERIOD_S", 0.001)

    async def test(front: Front) -> None:
        await front.good()
        stream = front.dashboard._stream()
        kind, hello = await next_event(stream)
        assert kind == "hello"
        assert [tenant["name"] for tenant in hello["tenants"]] == ["sums", "one", "two"]
        assert hello["tenants"][0]["target_ms"] == 7
        assert hello["domains"] == [[0, 1]]
        kind, frame = await next_event(stream)
        assert kind == "frame"
        (block,) = frame["blocks"]
        assert block[:4] == ["sums", 1, 0, 3] and block[7] is True and block[9] == [[0, 1], [2, 2]]
        assert frame["tenants"][0]["answered"] == 1
        assert frame["tenants"][0]["qos_rate"] == 1.0
        assert frame["tenants"][0]["waiting"] == 5
        assert frame["engine"]["level"] == 1.25
        front.engine.ready = False
        _, frame = await next_event(stream)
        assert frame["engine"] is None and frame["blocks"] == []
        front.engine.ready = True
        _, frame = await next_event(stream)
        assert frame["blocks"] == []  # told already
        assert frame["engine"]["conflicts_per_s"] is None
        await front.dashboard.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(test)


def test_nobody_looks_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "PERIOD_S", 0.001)

    async def test(front: Front) -> None:
        assert front.dashboard._ticker is None
        stream = front.dashboard._stream()
        await anext(stream)
        await anext(stream)
        ticker = front.dashboard._ticker
        assert ticker is not None
        await stream.aclose()
        await asyncio.wait_for(ticker, 30)

    run(test)


def test_busy_shares_follow_the_growth_of_a_block() -> None:
    second = 1_000_000_000
    grown = BlockRecord(1, "a", 0, 4, (0,) * 4, (0,), 0, second // 2, True, 1.0, (Growth(2, (0, 1), second // 4),))
    old = BlockRecord(2, "b", 0, 1, (0,), (1,), -3 * second, -second, False, 1.0)
    across = BlockRecord(3, "b", 0, 1, (0,), (1,), 3 * second // 4, 9 * second, False, 1.0)
    assert busy_shares([grown, old, across], (), second, (0, 1)) == {"0": {"a": 0.5}, "1": {"a": 0.25, "b": 0.25}}
    live = RunningBlock(4, "c", 1, 0, 3, 1, (0, 0, 0), (1,), False, 9 * second // 10)
    assert busy_shares([old], [live], second, (0, 1)) == {"0": {}, "1": {"c": 0.1}}
    assert runs((0, 0, 3, 0)) == [(0, 2), (3, 1), (0, 1)]
