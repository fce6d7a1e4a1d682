"""The dashboard: its files and its stream of events."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from in_process_front import ENOUGH_MS, MS, Front, run

from veltair.server.front.monitor import dashboard
from veltair.server.front.monitor.core_use import busy_shares, run_lengths
from veltair.server.ipc.stages import STAGES
from veltair.server.ipc.status_records import BlockRecord, BlockStatus, CoreChange


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
        assert hello["tenants"][0]["target_ms"] == ENOUGH_MS and hello["tenants"][0]["priority"] == 1
        assert hello["domains"] == [[0, 1]]
        assert hello["stages"][0] == STAGES[0]._asdict() and len(hello["stages"]) == len(STAGES)
        kind, frame = await next_event(stream)
        assert kind == "frame"
        (block,) = frame["blocks"]
        assert block[:4] == ["sums", 1, 0, 3] and block[7] is True and block[9] == [[0, 1], [2, 2]]
        assert frame["tenants"][0]["answered"] == 1
        assert frame["tenants"][0]["versions"] == {"0": 1, "2": 2}
        assert frame["tenants"][0]["qos_rate"] == 1.0
        assert frame["tenants"][0]["waiting"] == 5
        assert frame["tenants"][0]["stages_ms"] is None  # nothing was answered since the first frame
        assert frame["engine"]["level"] == 1.25
        front.engine.ready = False
        _, frame = await next_event(stream)
        assert frame["engine"] is None and frame["blocks"] == [] and frame["tenants"][0]["versions"] == {}
        front.engine.ready = True
        _, frame = await next_event(stream)
        assert frame["blocks"] == []  # sent already
        assert frame["engine"]["conflicts_per_s"] is None
        await front.dashboard.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(test, target_ms=ENOUGH_MS)


def test_means_of_stages_are_those_of_the_last_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "PERIOD_S", 0.001)

    async def test(front: Front) -> None:
        counts = front.metrics.tenants["sums"]
        counts.count_answer((MS,) * len(STAGES), batch=1)  # before the first frame
        stream = front.dashboard._stream()
        await anext(stream)
        await anext(stream)
        counts.count_answer((0, MS, 0, 2 * MS, 0, 0, 5 * MS), batch=1)
        counts.count_answer((0, MS, 0, 4 * MS, 0, 0, 0), batch=1)
        while (await next_event(stream))[1]["tenants"][0]["answered"] < 3:
            pass
        _, frame = await next_event(stream)
        assert frame["tenants"][0]["stages_ms"] == [0, 1, 0, 3, 0, 0, 2.5]
        assert frame["tenants"][1]["stages_ms"] is None
        while frame["tenants"][0]["stages_ms"] is not None:  # until those frames have passed
            _, frame = await next_event(stream)
        await stream.aclose()

    run(test)


def test_no_work_without_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
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
