"""The dashboard: a static page, and what happens told once a second to whoever looks; nobody looks, no work."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any, Protocol

import msgspec
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from veltair.errors import OverloadedError, VeltairError
from veltair.server.front.engine_client import Snapshot
from veltair.server.front.metrics import Metrics
from veltair.server.front.recent_window import SECOND_NS
from veltair.server.ipc.messages import BlockRecord, RunningBlock, Status
from veltair.types import CoreSet, Machine

PERIOD_S = 1.0
RECENT_NS = 10 * SECOND_NS  # what the table's rates and quantiles look back on
HISTORY_S = 60  # told once to a new viewer, so that its charts do not start empty
BUSY_SPAN_NS = SECOND_NS
BUSY_LAG_NS = SECOND_NS // 4  # blocks are told when their query ends: the busy second ends a little earlier
MAX_BLOCKS = 1500  # in one event; the newest are kept
MAX_VIEWERS = 32

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml", "txt": "text/plain"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # by ETag: a new version of the daemon is seen at once
}


class Source(Protocol):
    """Where the engine's part comes from: `EngineClient`."""

    async def snapshot(self, since: int = 0) -> Snapshot: ...


class Dashboard:
    def __init__(self, source: Source, metrics: Metrics, machine: Machine, about: dict[str, Any]) -> None:
        """`about` is told to the page once: version, policy and the like."""
        self._source = source
        self._metrics = metrics
        self._machine = machine
        self._about = about
        self._files = _static_files()
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._ticker: asyncio.Task[None] | None = None
        self._cursor = 0  # blocks up to here were told
        self._recent: list[BlockRecord] = []  # that ended within the last second
        self._before: Status | None = None

    async def snapshot(self, since: int = 0) -> Snapshot | None:
        """None while the engine cannot answer."""
        try:
            return await self._source.snapshot(since)
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
        """Server-sent events; at most MAX_VIEWERS at once."""
        if len(self._viewers) >= MAX_VIEWERS:
            raise OverloadedError(f"{MAX_VIEWERS} dashboards are open already")
        return StreamingResponse(
            self._stream(), headers={**_HEADERS, "Cache-Control": "no-store"}, media_type="text/event-stream"
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=4)
        yield _event("hello", await self._hello())
        self._viewers.add(queue)
        if self._ticker is None or self._ticker.done():
            self._ticker = asyncio.create_task(self._tick())
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._viewers.discard(queue)

    async def _tick(self) -> None:
        self._before, self._cursor, self._recent = None, 0, []
        while self._viewers:
            started = time.monotonic()
            snapshot = await self.snapshot(self._cursor)
            event = _event("frame", self._frame(time.monotonic_ns(), snapshot))
            for queue in tuple(self._viewers):
                if queue.full():  # it reads slower than once a second: it misses this one
                    continue
                queue.put_nowait(event)
            await asyncio.sleep(max(0.0, PERIOD_S - (time.monotonic() - started)))

    async def close(self) -> None:
        """End every stream, so that the server can stop."""
        if self._ticker is not None:
            self._ticker.cancel()
        for queue in tuple(self._viewers):
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    async def _hello(self) -> dict[str, Any]:
        now = time.monotonic_ns()
        start = now // SECOND_NS - HISTORY_S
        tenants = []
        for name, t in self._metrics.tenants.items():
            await asyncio.sleep(0)  # a tenant's minute takes milliseconds when its ring is full: queries go between
            seconds = [t.window.stats(s * SECOND_NS, (s + 1) * SECOND_NS) for s in range(start, start + HISTORY_S)]
            tenants.append(
                {
                    "name": name,
                    "model": t.model,
                    "target_ms": t.target_ns / 1e6,
                    "percentile": t.window.percentile,
                    "history": {"qps": [s.qps for s in seconds], "tail_ms": [s.tail_ms for s in seconds]},
                }
            )
        return {"about": self._about, "domains": self._machine.domains, "tenants": tenants}

    def _frame(self, now_ns: int, snapshot: Snapshot | None) -> dict[str, Any]:
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
        frame["engine"] = {**engine_facts(status, before), "held": snapshot.held, "draining": snapshot.draining}
        return frame

    def _tenant(self, name: str, now_ns: int, status: Status | None) -> dict[str, Any]:
        t = self._metrics.tenants[name]
        recent = t.window.stats(now_ns - RECENT_NS, now_ns + 1)
        second = t.window.stats(now_ns - SECOND_NS, now_ns + 1)
        count = status.tenants.get(name) if status else None
        return {
            **msgspec.to_builtins(recent),
            "second": {"qps": second.qps, "tail_ms": second.tail_ms},
            "waiting": count.waiting if count else None,
            "running": count.running if count else None,
            "cores": sum(len(b.cores) for b in status.running if b.tenant == name) if status else None,
            "versions": {str(version): n for version, n in sorted(t.versions.items())},
            "answered": t.outcomes["ok"],
        }

    def _block(self, b: BlockRecord) -> list[Any]:
        """Compact: a frame holds hundreds. Times in ms of the monotonic clock."""
        grown = [[g.time_ns / 1e6, g.cores] for g in b.grown]
        ends = b.begin_ns / 1e6, b.end_ns / 1e6
        return [
            b.tenant,
            b.query,
            b.start,
            b.stop,
            *ends,
            b.cores,
            b.conflict,
            b.level,
            runs(b.versions),
            grown,
            b.queries,
        ]


def runs(versions: Sequence[int]) -> list[tuple[int, int]]:
    """Run lengths of the versions of a block's layers: (version, layers)."""
    return [(version, len(list(group))) for version, group in groupby(versions)]


def engine_facts(status: Status, before: Status | None) -> dict[str, Any]:
    """Levels of now, and rates since the frame before (None in the first)."""

    def rate(value: int, earlier: int) -> float:
        return max(0, value - earlier) / (max(1, status.time_ns - before.time_ns) / SECOND_NS) if before else 0.0

    states = Counter(worker.state for worker in status.workers)
    arrived = sum(t.arrived for t in status.tenants.values())
    return {
        "level": status.level,
        "level_source": status.level_source,
        "conflicts_per_s": rate(status.conflicts, before.conflicts) if before else None,
        "blocks_per_s": rate(status.blocks, before.blocks) if before else None,
        "scheduler_us_per_query": status.scheduler_ns / 1e3 / arrived if arrived else None,
        "gap_us": status.gap_ns / 1e3 / status.gaps if status.gaps else None,
        "workers": {state: states[state] for state in ("idle", "busy", "starting")},
        "worker_deaths": status.worker_deaths,
    }


def busy_shares(
    ended: Iterable[BlockRecord], running: Iterable[RunningBlock], now_ns: int, cores: CoreSet
) -> dict[str, dict[str, float]]:
    """Share of the second up to `now_ns` that each core spent for each tenant: {core: {tenant: 0 … 1}}."""
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
        for growth in block.grown:
            add(block.tenant, on, begin_ns, growth.time_ns)
            begin_ns, on = growth.time_ns, growth.cores
        add(block.tenant, on, begin_ns, block.end_ns)
    for live in running:
        add(live.tenant, live.cores, live.since_ns, now_ns)
    return {str(core): {t: round(ns / BUSY_SPAN_NS, 4) for t, ns in by.items()} for core, by in spent.items()}


def _event(kind: str, value: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Content and ETag by name; read once."""
    found = {}
    for entry in files("veltair.server").joinpath("static").iterdir():
        if entry.name.rpartition(".")[2] in _TYPES:
            content = entry.read_bytes()
            found[entry.name] = content, f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    return found
