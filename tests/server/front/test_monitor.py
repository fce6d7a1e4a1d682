"""What an operator sees besides the stream: events, the last hour, pages about models, and the way there."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
from in_process_front import MS, Front, run

from veltair.errors import OverloadedError, QueryError, RefusalReason, WorkerDiedError
from veltair.server.access.inside_protocol import CAME_IN
from veltair.server.front.monitor import hour_history
from veltair.server.front.monitor.event_history import KEPT_EVENTS, MERGED_S, EventHistory
from veltair.server.front.monitor.frames import Frames
from veltair.server.front.monitor.hour_history import HourHistory
from veltair.server.front.monitor.tenant_colours import tenant_colour
from veltair.server.front.request_counts import RequestCounts
from veltair.server.ipc.daemon_events import EventKind
from veltair.types import Machine, QoSTarget

HOUR_S = 3600


class Clock:
    now_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Clocks:
    """In place of the module `time`."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return round(self.now_s * 1e9)

    def time(self) -> float:
        return 1_700_000_000 + self.now_s


def test_a_worker_that_dies_for_hours_leaves_an_hour_of_events() -> None:
    clock = Clock()
    history = EventHistory(clock)
    history.add(EventKind.STARTED, "", "version 1")
    for _ in range(2 * HOUR_S):
        clock.now_s += 1
        history.add(EventKind.WORKER_DIED, "", f"at {clock.now_s}")
    kept = history.since(0)
    assert len(kept) < KEPT_EVENTS and kept[0]["kind"] == "started"
    assert history.counts[EventKind.WORKER_DIED] == 2 * HOUR_S == sum(event["count"] for event in kept[1:])
    assert all(after["first_s"] - before["first_s"] >= MERGED_S for before, after in pairwise(kept[1:]))
    assert kept[-1]["text"] == f"at {clock.now_s}"


def test_events_of_models_are_kept_apart_and_new_ones_are_found_by_revision() -> None:
    history = EventHistory(Clock())
    for name in ("a", "b", "a"):
        history.add(EventKind.MODEL_FAILED, name, "no such file")
    assert [(event["subject"], event["count"]) for event in history.since(0)] == [("a", 2), ("b", 1)]
    assert [event["subject"] for event in history.since(2)] == ["a"]  # which has grown since
    assert history.since(3) == []


def test_burn_is_the_share_of_misses_over_the_allowed_share(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = RequestCounts("m", QoSTarget(10 * MS, 0.9))
    clocks = Clocks()
    monkeypatch.setattr(hour_history, "time", clocks)
    history = HourHistory({"m": counts})
    assert history.burn("m", "5m") is None  # nothing was asked
    for latency_ms in (5, 5, 5, 5, 50):
        counts.count_answer((0, 0, 0, latency_ms * MS, 0, 0, 0), batch=1)
    assert history.burn("m", "1h") == pytest.approx(2.0)  # one of five, where one of ten is allowed
    for step in range(60):
        clocks.now_s = 10.0 * (1 + step)
        history.take_step()
    assert history.burn("m", "5m") is None and history.burn("m", "1h") == pytest.approx(2.0)
    counts.count_error(OverloadedError(RefusalReason.OVERLOAD), 0)
    counts.count_error(OverloadedError(RefusalReason.RATE), 0)  # its own rate: no miss
    counts.count_error(WorkerDiedError("gone"), 0)
    counts.count_answer((0, 0, 0, MS, 0, 0, 0), batch=1)
    assert history.burn("m", "5m") == pytest.approx(20 / 3)
    assert counts.slo_misses() == {"late": 1, "overloaded": 1, "deadline": 0, "failed": 1}
    charts = history.charts()
    assert len(charts["at_s"]) == len(charts["tenants"]["m"]["qps"]) == 60


def test_a_tenant_that_came_later_has_a_gap_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tenants = {"first": RequestCounts("m", QoSTarget(10 * MS))}
    history = HourHistory(tenants)
    history.take_step()
    tenants["second"] = RequestCounts("m", QoSTarget(10 * MS))
    history.take_step()
    assert history.charts()["tenants"]["second"]["qps"] == [None, 0.0]
    assert history.charts()["tenants"]["first"]["tail_ms"] == [None, None]  # nothing was answered: no zero


def contrast(one: str, other: str) -> float:
    """WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_colours_of_tenants_differ_and_stand_out() -> None:
    for page, at in (("#ffffff", 0), ("#161c24", 1)):
        colours = [tenant_colour(index)[at] for index in range(72)]
        assert len(set(colours)) == 72
        assert min(contrast(colour, page) for colour in colours) >= 3


def test_the_front_door_leads_to_the_dashboard_where_that_is_served() -> None:
    async def test(front: Front) -> None:
        answer = await front.http.get("/")
        assert (answer.status_code, answer.headers["Location"]) == (307, "/admin")
        front.dashboard._apart = True
        answer = await front.http.get("/")
        text = "the dashboard is served at the address for administration; /docs describes this one"
        assert (answer.status_code, answer.json()) == (404, {"error": text})
        inside = front.app
        came: dict[str, tuple[str, str]] = {CAME_IN: ("admin", "")}

        async def by_the_other_address(scope: object, receive: object, send: object) -> None:
            await inside({**scope, **came}, receive, send)  # type: ignore[dict-item, arg-type]

        front.http._transport.app = by_the_other_address  # type: ignore[attr-defined]
        assert (await front.http.get("/")).status_code == 307

    run(test)


def test_events_and_models_as_json() -> None:
    async def test(front: Front) -> None:
        assert front.metrics.events is not None
        front.metrics.events.add(EventKind.MODEL_LOADED, "sums", "version 1")
        told = (await front.http.get("/admin/api/events")).json()
        assert told["revision"] == 1 and told["events"][0]["kind"] == "model_loaded"
        assert (await front.http.get("/admin/api/events?since=1")).json()["events"] == []
        assert (await front.http.get("/admin/api/events?since=abc")).status_code == 200
        await front.good()
        model = (await front.http.get("/admin/api/models/sums")).json()
        assert model["inputs"][1] == {"name": "ids", "datatype": "INT64", "shape": [-1, 2], "bounds": [0, 99]}
        assert not model["memory"]["resident"] and model["memory"]["held"] is None  # no files are behind it
        assert model["memory"]["query"] > 8 * (4 * 4 + 2 * 8) and model["memory"]["weights"] == 0
        assert model["use"]["versions"] == {"0": 1, "2": 2} and model["use"]["drift"] == 1.5
        front.engine.ready = False
        assert (await front.http.get("/admin/api/models/sums")).json()["use"] is None
        assert (await front.http.get("/admin/api/models/nobody")).status_code == 404
        page = await front.http.get("/admin/models/sums")
        assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")

    run(test)


def test_a_frame_says_what_was_refused_and_why_and_what_has_happened() -> None:
    async def test(front: Front) -> None:
        metrics, frames = front.metrics, Frames(front.metrics, Machine(((0, 1),)))
        first_ns = time.monotonic_ns()
        assert frames.make(first_ns, None)["early"] == {}
        metrics.tenants["sums"].count_error(OverloadedError(RefusalReason.OVERLOAD), 0)
        metrics.tenants["sums"].count_error(QueryError("a bug"), 0)
        metrics.refused_early[RefusalReason.MEMORY] += 4
        assert metrics.events is not None
        metrics.events.add(EventKind.ENGINE_DIED, "", "code 1")
        frame = frames.make(first_ns + 2_000_000_000, await front.dashboard.snapshot())
        sums = frame["tenants"][0]
        assert (sums["refused"], sums["failed"]) == ({"overload": 0.5}, {"internal": 0.5})
        assert frame["early"] == {"memory": 2.0}
        assert [event["kind"] for event in frame["events"]] == ["engine_died"]
        assert frame["tenants"][0]["burn"]["5m"] == pytest.approx(20.0)
        assert frame["engine"]["restarts"] == 0 and frame["tenants"][0]["drift"] == 1.5
        assert frames.make(first_ns + 3_000_000_000, None)["events"] == []

    run(test)
