"""What people and Prometheus look at: metrics and the dashboard."""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from veltair.errors import OverloadedError
from veltair.server.front import dashboard
from veltair.server.front.dashboard import busy_shares, run_lengths
from veltair.server.ipc.messages import BlockRecord, BlockStatus, CoreChange

from .front import MS, Front, request, run

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
        assert all(name.startswith(("veltair_", "process_")) for name in re.findall(r"^(\w+)[{ ]", page, re.MULTILINE))
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
        edges = {"1": 7, "2": 7, "4": 9, "128": 9, "+Inf": 10}
        assert {le: value("veltair_batch_queries_bucket", ("tenant", "sums"), ("le", le)) for le in edges} == edges
        assert value("veltair_batch_queries_sum", ("tenant", "sums")) == 213
        assert value("veltair_batch_queries_count", ("tenant", "two")) == 0
        assert value("veltair_cores") == 2
        assert value("veltair_conflicts_total") == 4
        assert value("veltair_scheduler_seconds_sum") == 9e-6
        assert value("veltair_workers", ("state", "busy")) == 1
        this_process = {("role", "front"), ("pid", str(os.getpid()))}
        assert value("process_resident_memory_bytes", *this_process) > 1 << 20
        assert value("process_cpu_seconds_total", *this_process) > 0
        assert value("process_threads", *this_process) >= 1
        assert value("process_open_fds", *this_process) >= 3
        front.engine.ready = False
        assert "veltair_requests_total" in (await front.http.get("/metrics")).text

    run(test)


def test_the_qos_rate_read_from_the_histogram_is_exact() -> None:
    front = Front()
    counts = front.metrics.tenants["sums"]
    for duration_ns in (7 * MS - 1, 7 * MS, 7 * MS + 1, 90 * MS):
        counts.count_answer(duration_ns, 0, 0, 1, ())
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
        assert front.dashboard._sender is None
        stream = front.dashboard._stream()
        await anext(stream)
        await anext(stream)
        ticker = front.dashboard._sender
        assert ticker is not None
        await stream.aclose()
        await asyncio.wait_for(ticker, 30)

    run(test)


def test_busy_shares_follow_the_growth_of_a_block() -> None:
    second = 1_000_000_000
    grown = BlockRecord(1, "a", 0, 4, (0,) * 4, (0,), 0, second // 2, True, 1.0, (CoreChange(2, (0, 1), second // 4),))
    old = BlockRecord(2, "b", 0, 1, (0,), (1,), -3 * second, -second, False, 1.0)
    across = BlockRecord(3, "b", 0, 1, (0,), (1,), 3 * second // 4, 9 * second, False, 1.0)
    assert busy_shares([grown, old, across], (), second, (0, 1)) == {"0": {"a": 0.5}, "1": {"a": 0.25, "b": 0.25}}
    live = BlockStatus(4, "c", 1, 0, 3, 1, (0, 0, 0), (1,), False, 9 * second // 10)
    assert busy_shares([old], [live], second, (0, 1)) == {"0": {}, "1": {"c": 0.1}}
    assert run_lengths((0, 0, 3, 0)) == [(0, 2), (3, 1), (0, 1)]
