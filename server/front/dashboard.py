"""`Dashboard`: static files, and a stream of events that shows each viewer the server once a second.

Without viewers it does no work.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from veltair.errors import OverloadedError, RefusalReason, VeltairError
from veltair.server.front.inference_service import InferenceEngine
from veltair.server.front.metrics import Metrics
from veltair.server.front.recent_window import SECOND_NS
from veltair.server.front.request_counts import StageTotals
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.messages import EngineStatus
from veltair.server.ipc.stages import STAGES
from veltair.server.ipc.status_records import BlockRecord, BlockStatus
from veltair.types import CoreSet, Machine

PERIOD_S = 1.0
RECENT_NS = 10 * SECOND_NS  # the span of the table's rates and quantiles
STAGE_FRAMES = 11  # means of stages are those between the first and the last: 10 s
HISTORY_S = 60  # sent once to a new viewer, so that its charts do not start empty
BUSY_SPAN_NS = SECOND_NS
BUSY_LAG_NS = SECOND_NS // 4  # blocks are known when their query ends: the busy second ends a little earlier
MAX_BLOCKS = 1500  # in one event; the newest are kept
MAX_VIEWERS = 32

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # by ETag: a browser loads a new version of the daemon at once
}


class Dashboard:
    """The routes below /admin. A task takes one snapshot a second for all viewers.

    ::

        dashboard = Dashboard(engine, metrics, machine, {"version": "0.1.0", "policy": "veltair"})
        app.add_route("/admin", dashboard.page)
        app.add_route("/admin/events", dashboard.events)
    """

    def __init__(self, engine: InferenceEngine, metrics: Metrics, machine: Machine, about: dict[str, Any]) -> None:
        """`about` is sent to each viewer once: version and policy."""
        self._engine = engine
        self._metrics = metrics
        self._machine = machine
        self._about = about
        self._files = _static_files()
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._cursor = 0  # blocks up to here were sent
        self._recent: list[BlockRecord] = []  # blocks that ended within the last second
        self._before: EngineStatus | None = None
        self._totals: deque[dict[str, StageTotals]] = deque(maxlen=STAGE_FRAMES)  # by tenant, a frame each

    async def snapshot(self, since: int | None = None) -> Snapshot | None:
        """The server now, as `EngineClient.snapshot` gives it; None while the engine cannot answer."""
        try:
            return await self._engine.snapshot(since)
        except VeltairError:
            return None

    async def page(self, request: Request) -> Response:
        return self._file("index.html", request)

    async def file(self, request: Request) -> Response:
        return self._file(request.path_params["name"], request)

    def _file(self, name: str, request: Request) -> Response:
        if name not in self._files:
            raise HTTPException(404)
        content, tag = self._files[name]
        headers = {**_HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, 200, headers, _TYPES[name.rpartition(".")[2]])

    async def events(self, request: Request) -> Response:
        """Server-sent events. Raises OverloadedError for more than MAX_VIEWERS at once."""
        if len(self._viewers) >= MAX_VIEWERS:
            raise OverloadedError(RefusalReason.VIEWERS)
        return StreamingResponse(
            self._stream(), headers={**_HEADERS, "Cache-Control": "no-store"}, media_type="text/event-stream"
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=4)
        yield _event("hello", await self._hello())
        self._viewers.add(queue)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send_frames())
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._viewers.discard(queue)

    async def _send_frames(self) -> None:
        self._before, self._cursor, self._recent = None, 0, []
        self._totals.clear()
        while self._viewers:
            started = time.monotonic()
            snapshot = await self.snapshot(self._cursor)
            event = _event("frame", self._frame(time.monotonic_ns(), snapshot))
            for queue in tuple(self._viewers):
                if queue.full():  # a viewer that reads slower than once a second misses this frame
                    continue
                queue.put_nowait(event)
            await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - started)))

    async def close(self) -> None:
        """End every stream, so that the server can stop."""
        if self._sender is not None:
            self._sender.cancel()
        self.begin_anew()

    def begin_anew(self) -> None:
        """End every stream; browsers come back at once, and hear which tenants there are now."""
        for queue in tuple(self._viewers):
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    async def _hello(self) -> dict[str, Any]:
        """The first event of a stream: what stays as it is, and the charts of the last minute."""
        self._metrics.refresh()
        now = time.monotonic_ns()
        start = now // SECOND_NS - HISTORY_S
        tenants = []
        for name, counts in self._metrics.tenants.items():
            await asyncio.sleep(0)  # a minute takes milliseconds when the ring is full: serve queries in between
            served = self._engine.models.tenants.get(name)
            seconds = [counts.window.stats(s * SECOND_NS, (s + 1) * SECOND_NS) for s in range(start, start + HISTORY_S)]
            tenants.append(
                {
                    "name": name,
                    "model": counts.model,
                    "target_ms": counts.target_ns / 1e6,
                    "percentile": counts.window.percentile,
                    "priority": served.priority if served else None,
                    "history": {"qps": [s.qps for s in seconds], "tail_ms": [s.tail_ms for s in seconds]},
                }
            )
        stages = [stage._asdict() for stage in STAGES]
        layers = {name: len(served.manifest.layers) for name, served in self._engine.models.tenants.items()}
        about = {**self._about, "layers": layers}
        return {"about": about, "domains": self._machine.domains, "stages": stages, "tenants": tenants}

    def _frame(self, now_ns: int, snapshot: Snapshot | None) -> dict[str, Any]:
        """One event: every tenant, the engine, and the blocks that ended since the frame before."""
        self._metrics.refresh()
        self._totals.append({name: counts.stage_totals() for name, counts in self._metrics.tenants.items()})
        status = snapshot.status if snapshot else None
        frame: dict[str, Any] = {
            "now_ms": now_ns / 1e6,
            "tenants": [self._tenant(name, now_ns, status) for name in self._metrics.tenants],
            "engine": None,
            "blocks": [],
            "dropped": 0,
            "running": [],
            "busy": {},
        }
        before, self._before = self._before, status
        if snapshot is None or status is None:
            return frame
        self._cursor = snapshot.cursor
        fresh = [block for block in snapshot.blocks if block.end_ns > now_ns - RECENT_NS]
        self._recent = [b for b in (*self._recent, *fresh) if b.end_ns > now_ns - BUSY_LAG_NS - BUSY_SPAN_NS]
        frame["blocks"] = [self._block(block) for block in fresh[-MAX_BLOCKS:]]
        frame["dropped"] = max(0, len(fresh) - MAX_BLOCKS)
        frame["running"] = [[b.tenant, b.query, b.start, b.stop, b.layer, b.cores] for b in status.running]
        frame["busy"] = busy_shares(self._recent, status.running, now_ns - BUSY_LAG_NS, self._machine.cores)
        frame["engine"] = {**engine_summary(status, before), "held": snapshot.held, "draining": snapshot.draining}
        return frame

    def _tenant(self, name: str, now_ns: int, status: EngineStatus | None) -> dict[str, Any]:
        counts = self._metrics.tenants[name]
        recent = counts.window.stats(now_ns - RECENT_NS, now_ns + 1)
        second = counts.window.stats(now_ns - SECOND_NS, now_ns + 1)
        tenant = status.tenants.get(name) if status else None
        return {
            **msgspec.to_builtins(recent),
            "second": {"qps": second.qps, "tail_ms": second.tail_ms},
            "waiting": tenant.waiting if tenant else None,
            "running": tenant.running if tenant else None,
            "cores": sum(len(b.cores) for b in status.running if b.tenant == name) if status else None,
            "versions": {str(version): n for version, n in sorted(tenant.versions.items())} if tenant else {},
            "answered": counts.outcomes["ok"],
            "stages_ms": self._totals[-1][name].means_ms(since=self._totals[0][name]),
        }

    def _block(self, b: BlockRecord) -> list[Any]:
        """Compact, as a frame holds hundreds. Times are ms of the monotonic clock."""
        times = b.begin_ns / 1e6, b.end_ns / 1e6
        core_changes = [[change.time_ns / 1e6, change.cores] for change in b.core_changes]
        block = [b.tenant, b.query, b.start, b.stop, *times, b.cores]
        return [*block, b.conflict, b.level, run_lengths(b.versions), core_changes, b.queries]


def run_lengths(versions: Sequence[int]) -> list[tuple[int, int]]:
    """The versions of a block's layers as (version, layers).

    >>> run_lengths((0, 0, 2))
    [(0, 2), (2, 1)]
    """
    return [(version, len(list(group))) for version, group in groupby(versions)]


def engine_summary(status: EngineStatus, before: EngineStatus | None) -> dict[str, Any]:
    """The engine's present levels, and its rates since the frame before (None in the first)."""

    def rate(value: int, earlier: int) -> float:
        return max(0, value - earlier) / (max(1, status.time_ns - before.time_ns) / SECOND_NS) if before else 0.0

    states = Counter(worker.state for worker in status.workers)
    arrived = sum(t.arrived for t in status.tenants.values())
    return {
        "level": status.level,
        "level_source": status.level_source,
        "conflicts_per_s": rate(status.conflicts, before.conflicts) if before else None,
        "blocks_per_s": rate(status.blocks_started, before.blocks_started) if before else None,
        "scheduler_us_per_query": status.scheduler_ns / 1e3 / arrived if arrived else None,
        "gap_us": status.gap_ns / 1e3 / status.gaps if status.gaps else None,
        "workers": {state: states[state] for state in ("idle", "busy", "starting", "changing")},
        "worker_deaths": status.worker_deaths,
    }


def busy_shares(
    ended: Iterable[BlockRecord], running: Iterable[BlockStatus], now_ns: int, cores: CoreSet
) -> dict[str, dict[str, float]]:
    """The share of the second up to `now_ns` that each core spent for each tenant: {core: {tenant: 0 … 1}}."""
    start_ns = now_ns - BUSY_SPAN_NS
    spent: dict[int, Counter[str]] = {core: Counter() for core in cores}

    def add(tenant: str, on: CoreSet, begin_ns: int, end_ns: int) -> None:
        inside = min(end_ns, now_ns) - max(begin_ns, start_ns)
        if inside > 0:
            for core in on:
                if core in spent:
                    spent[core][tenant] += inside

    for block in ended:
        if block.end_ns <= start_ns:
            continue
        begin_ns, on = block.begin_ns, block.cores
        for change in block.core_changes:
            add(block.tenant, on, begin_ns, change.time_ns)
            begin_ns, on = change.time_ns, change.cores
        add(block.tenant, on, begin_ns, block.end_ns)
    for live in running:
        add(live.tenant, live.cores, live.since_ns, now_ns)
    return {str(core): {t: round(ns / BUSY_SPAN_NS, 4) for t, ns in by.items()} for core, by in spent.items()}


def _event(kind: str, value: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Content and ETag of each file by its name."""
    found = {}
    for entry in files("veltair.server").joinpath("static").iterdir():
        if entry.name.rpartition(".")[2] in _TYPES:
            content = entry.read_bytes()
            found[entry.name] = content, f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    return found
