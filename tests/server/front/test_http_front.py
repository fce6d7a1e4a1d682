"""The HTTP routes, over an engine that computes with numpy."""

import asyncio
import json
import re
import time
from typing import Any

import pytest
from in_process_front import MS, Front, post_scope, request, run

from veltair.errors import DeadlineError, OverloadedError, QueryError, RefusalReason, RequestError, WorkerDiedError
from veltair.server.ipc.stages import EXECUTE


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


def test_a_traced_response_says_how_it_was_served() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", json=request(parameters={"veltair_trace": True}))
        parameters = answer.json()["parameters"]
        assert parameters["queue_ns"] == 3 * MS
        assert parameters["execute_ns"] == 2 * MS
        assert (parameters["handoff_ns"], parameters["wait_ns"]) == (MS, MS)
        assert (parameters["gap_ns"], parameters["report_ns"]) == (0, 0)
        assert isinstance(parameters["read_ns"], int) and "answer_ns" not in parameters
        (block,) = json.loads(parameters["blocks"])
        assert block == {"start": 0, "stop": 3, "cores": 2, "versions": [0, 2, 2], "elapsed_ns": 2 * MS, "queries": 1}

    run(test)


def test_an_answer_has_the_server_s_own_times() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.post("/v2/models/sums/infer", json=request(parameters={"veltair_trace": True}))
        queue, compute = re.fullmatch(
            r"queue;dur=(\d+\.\d{3}), compute;dur=(\d+\.\d{3})", answer.headers["Server-Timing"]
        ).groups()  # type: ignore[union-attr]
        stages = answer.json()["parameters"]
        waited_us = sum(stages[f"{name}_ns"] for name in ("read", "handoff", "wait")) // 1000
        assert (queue, compute) == (f"{max(0, waited_us) / 1000:.3f}", "2.000")
        refused = await front.http.post("/v2/models/none/infer", json=request())
        assert "Server-Timing" not in refused.headers

    run(test)


def test_unknown_parameters_are_named_in_the_answer() -> None:
    async def test(front: Front) -> None:
        known = {"timeout": 60_000_000, "priority": 2, "binary_data_output": False, "sequence_id": 0}
        answer = await front.http.post("/v2/models/sums/infer", json=request(parameters=known))
        assert "parameters" not in answer.json()
        strange = {f"p{i}\u00e9": i for i in range(10)}
        answer = await front.http.post("/v2/models/sums/infer", json=request(parameters=known | strange))
        warning = answer.json()["parameters"]["veltair_warning"]
        assert warning.startswith(r"unknown parameters: 'p0\xe9', 'p1\xe9'") and warning.endswith(" and 2 more")

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
    (OverloadedError(RefusalReason.SLOTS), 503, RefusalReason.SLOTS.text),
    (DeadlineError(RefusalReason.DEADLINE), 504, RefusalReason.DEADLINE.text),
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

        scope = post_scope("/v2/models/sums/infer")
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


def test_metadata_configuration_and_statistics_of_a_model() -> None:
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
        front.engine.failure = DeadlineError(RefusalReason.DEADLINE)
        await front.http.post("/v2/models/sums/infer", json=request())
        for path in ("/v2/models/sums/stats", "/v2/models/sums/versions/1/stats"):
            (stats,) = (await front.http.get(path)).json()["model_stats"]
            assert (stats["inference_count"], stats["execution_count"]) == (1, 1)
            (executed,) = stats["batch_stats"]
            assert executed == {
                "batch_size": 1,
                "compute_input": {"count": 1, "ns": 0},
                "compute_infer": {"count": 1, "ns": 2_000_000},
                "compute_output": {"count": 1, "ns": 0},
            }
            queued_ns = sum(front.metrics.tenants["sums"].stage_ns[:EXECUTE])
            assert stats["inference_stats"]["queue"] == {"count": 1, "ns": queued_ns}
            assert stats["inference_stats"]["fail"]["count"] == 1
        everything = (await front.http.get("/v2/models/stats")).json()["model_stats"]
        assert [stats["name"] for stats in everything] == ["sums", "one", "two"]

    run(test)
