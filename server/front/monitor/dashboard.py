"""`Dashboard`: the pages below /admin, and a stream that shows each viewer the server once a second.

Without viewers it does no work, except for the step that the last hour takes every ten seconds (`hour_history`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.responses import RedirectResponse, StreamingResponse

from veltair.errors import OverloadedError, RefusalReason, UnknownModelError, UnknownPathError, VeltairError, quoted
from veltair.server.access.inside_protocol import CAME_IN
from veltair.server.front.inference_service import InferenceEngine
from veltair.server.front.metrics import Metrics
from veltair.server.front.monitor.frames import Frames
from veltair.server.front.monitor.hour_history import BURN_SPANS_S
from veltair.server.front.monitor.model_details import model_details
from veltair.server.front.monitor.static_files import HEADERS, StaticFiles
from veltair.server.front.monitor.tenant_colours import tenant_colour
from veltair.server.front.recent_window import SECOND_NS
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.stages import STAGES
from veltair.types import Machine

PERIOD_S = 1.0
HISTORY_S = 120  # in steps of a second, sent once to a new viewer, so that its charts do not start empty
HELLO_EVENTS = 500
MAX_VIEWERS = 32
ANSWER_S = 0.8  # an engine that has not answered by then is shown as one that does not


class Dashboard:
    """The routes below /admin. A task takes one snapshot a second for all viewers.

    ::

        dashboard = Dashboard(engine, metrics, machine, apart=False)
        app.add_route("/admin", dashboard.page)
        app.add_route("/admin/events", dashboard.stream)
    """

    def __init__(self, engine: InferenceEngine, metrics: Metrics, machine: Machine, *, apart: bool = False) -> None:
        """`apart`: it is served at an address of its own, where there is no inference."""
        self._engine, self._metrics, self._machine, self._apart = engine, metrics, machine, apart
        self._files = StaticFiles()
        self._viewers: set[asyncio.Queue[bytes | None]] = set()
        self._sender: asyncio.Task[None] | None = None
        self._started_s = time.monotonic()
        self._colours: dict[str, int] = {}  # by tenant, also those that are gone: they may come back

    async def snapshot(self, since: int | None = None) -> Snapshot | None:
        """The server now, as `EngineClient.snapshot` gives it; None while the engine does not answer."""
        try:
            return await asyncio.wait_for(self._engine.snapshot(since), ANSWER_S)
        except (VeltairError, TimeoutError):
            return None

    # Pages

    async def front_door(self, request: Request) -> Response:
        """Send who asks for the server's address alone to the dashboard, where it is served there."""
        if self._apart and request.scope.get(CAME_IN, ("main", ""))[0] != "admin":
            raise UnknownPathError(
                "the dashboard is served at the address for administration; /docs describes this one"
            )
        return RedirectResponse("/admin", 307, {"Cache-Control": "no-store"})

    async def page(self, request: Request) -> Response:
        return self._files.response("index.html", request)

    async def model_page(self, request: Request) -> Response:
        """The page reads which model it is about from its own address."""
        return self._files.response("model.html", request)

    async def file(self, request: Request) -> Response:
        return self._files.response(request.path_params["name"], request)

    # For scripts and for the pages

    async def past_events(self, request: Request) -> Response:
        """What happened to the daemon, oldest first. `?since=N`: what is new since the answer with `revision` N."""
        events = self._metrics.events
        since = request.query_params.get("since", "0")
        kept = [] if events is None else events.since(int(since) if since.isdecimal() and len(since) < 19 else 0)
        return _json({"revision": events.revision if events else 0, "events": kept})

    async def model(self, request: Request) -> Response:
        """One model in full. `?version=N`: another one than the default. Raises UnknownModelError."""
        name, models = request.path_params["model"], self._engine.models
        if name not in models.tenants:
            raise UnknownModelError(f"unknown model {quoted(name)}")
        served = models.resolve(name, request.query_params.get("version", ""))
        snapshot = await self.snapshot()
        status = snapshot.status.tenants.get(name) if snapshot else None
        workers = len(snapshot.status.workers) if snapshot else None
        memory = snapshot.memory if snapshot else ()
        held = next((each for each in memory if (each.tenant, each.version) == served.key), None)
        cores = len(self._machine.cores)
        details = model_details(served, models.versions(name), status, cores=cores, workers=workers, held=held)
        return _json({**details, "colour": self._colour(name)})

    # The stream

    async def stream(self, request: Request) -> Response:
        """Server-sent events. Raises OverloadedError for more than MAX_VIEWERS at once."""
        headers = {**HEADERS, "Cache-Control": "no-store"}
        if request.method == "HEAD":  # it would never end
            return Response(headers=headers, media_type="text/event-stream")
        if len(self._viewers) >= MAX_VIEWERS:
            self._metrics.refused_early[RefusalReason.VIEWERS] += 1
            raise OverloadedError(RefusalReason.VIEWERS)
        return StreamingResponse(self._stream(), headers=headers, media_type="text/event-stream")

    async def _stream(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=4)
        self._viewers.add(queue)  # first: no event falls between hello and the frames
        try:
            yield _event("hello", await self._hello())
            if self._sender is None or self._sender.done():
                self._sender = asyncio.create_task(self._send_frames())
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._viewers.discard(queue)

    async def _send_frames(self) -> None:
        frames = Frames(self._metrics, self._machine)
        while self._viewers:
            started = time.monotonic()
            snapshot = await self.snapshot(frames.cursor)
            event = _event("frame", frames.make(time.monotonic_ns(), snapshot))
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
        """The first event of a stream: what stays as it is, the charts so far, and what has happened."""
        metrics = self._metrics
        metrics.refresh()
        now_s = int(time.monotonic())
        start = max(now_s - HISTORY_S, int(self._started_s) + 1)  # nobody counted before
        tenants = []
        for name, counts in tuple(metrics.tenants.items()):
            await asyncio.sleep(0)  # this takes milliseconds when the ring is full: serve queries in between
            served = self._engine.models.tenants.get(name)
            seconds = [counts.window.stats(s * SECOND_NS, (s + 1) * SECOND_NS) for s in range(start, now_s)]
            tenants.append(
                {
                    "name": name,
                    "model": counts.model,
                    "colour": self._colour(name),
                    "target_ms": counts.target_ns / 1e6,
                    "percentile": counts.window.percentile,
                    "priority": served.priority if served else None,
                    "layers": len(served.manifest.layers) if served else None,
                    "history": {"qps": [s.qps for s in seconds], "tail_ms": [s.tail_ms for s in seconds]},
                }
            )
        return {
            "about": {**metrics.build, "apart": self._apart, "burn_spans": list(BURN_SPANS_S)},
            "now_s": time.time(),
            "domains": self._machine.domains,
            "stages": [stage._asdict() for stage in STAGES],
            "tenants": tenants,
            "hour": metrics.hour.charts() if metrics.hour else None,
            "events": metrics.events.since(0, HELLO_EVENTS) if metrics.events else [],
        }

    def _colour(self, name: str) -> tuple[str, str]:
        for known in (*self._metrics.tenants, name):
            self._colours.setdefault(known, len(self._colours))
        return tenant_colour(self._colours[name])


def _event(kind: str, value: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), 200, {**HEADERS, "Cache-Control": "no-store"}, "application/json")
