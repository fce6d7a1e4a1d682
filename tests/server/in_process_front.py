"""The HTTP application in this process, over an engine that computes with numpy."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from msgspec.structs import replace

from veltair.errors import OverloadedError, RefusalReason
from veltair.profiles.artifact.manifest import SCHEMA, Manifest, Port
from veltair.profiles.artifact.sealed_artifact import SealedArtifact, SealedFiles
from veltair.server.front.http_front import application
from veltair.server.front.inference_service import InferenceService
from veltair.server.front.metrics import Metrics
from veltair.server.front.monitor.dashboard import Dashboard
from veltair.server.front.monitor.event_history import EventHistory
from veltair.server.front.monitor.hour_history import HourHistory
from veltair.server.front.query_result import QueryResult
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.messages import EngineStatus
from veltair.server.ipc.stages import EngineStamps
from veltair.server.ipc.status_records import (
    BlockRecord,
    BlockStatus,
    Executions,
    SandboxStatus,
    TenantStatus,
    WorkerStatus,
)
from veltair.server.repository.live_models import LiveModels
from veltair.server.repository.served_tenant import ServedTenant
from veltair.types import DEFAULT_PRIORITY_LEVEL, Machine, QoSTarget

LIMIT = 4 << 20
MS = 1_000_000
INPUTS = (Port("x", "float32", (-1, 4)), Port("ids", "int64", (-1, 2), 0, 99))
OUTPUTS = (Port("sum", "float32", (-1, 1)), Port("ids_sum", "int64", (-1, 1)))
MANIFEST = Manifest(
    schema=SCHEMA,
    model="sums",
    precision="fp32",
    tolerance=1e-3,
    qos_ns=7 * MS,
    target={},
    features=(),
    max_batch=8,
    batches=(8,),
    levels=(1.0,),
    inputs=INPUTS,
    outputs=OUTPUTS,
    buffers=(),
    arena_bytes=0,
    layers=(),
    environment={},
    source_digest="",
    kernels_digest="",
    weights_digest="",
)


def served(name: str, manifest: Manifest, qos: QoSTarget) -> ServedTenant:
    return ServedTenant(
        name, "1", SealedArtifact(Path(), manifest, "", SealedFiles(-1, -1, -1)), qos, 1, batching=False
    )


@dataclass
class NumpyEngine:
    """Adds up. `failure` is raised instead, `gate` waited for first."""

    tenants: Mapping[str, ServedTenant]
    failure: BaseException | None = None
    gate: asyncio.Event | None = None
    ready: bool = True
    deadlines: list[int | None] = field(default_factory=list)
    priority_levels: list[int] = field(default_factory=list)
    blocks: list[BlockRecord] = field(default_factory=list)
    cancelled: int = 0

    @property
    def models(self) -> LiveModels:
        return LiveModels(self.tenants.values())

    async def infer(
        self,
        tenant: ServedTenant,
        inputs: Mapping[str, Any],
        *,
        deadline_ns: int | None = None,
        priority_level: int = DEFAULT_PRIORITY_LEVEL,
        traced: bool = False,
    ) -> QueryResult:
        self.deadlines.append(deadline_ns)
        self.priority_levels.append(priority_level)
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.failure is not None:
            raise self.failure
        now = time.monotonic_ns()
        block = BlockRecord(1, tenant.name, 0, 3, (0, 2, 2), (0, 1), now - 2 * MS, now, True, 1.25)
        stamps = EngineStamps(now - 3 * MS, now - 2 * MS, now, now)
        self.blocks.append(block)
        with np.errstate(all="ignore"):  # clients may send NaN
            sums = {name: inputs[name].sum(axis=1, keepdims=True) for name in ("x", "ids")}
        outputs = {"sum": sums["x"], "ids_sum": sums["ids"]}
        return QueryResult(outputs, 3 * MS, 2 * MS, now - 4 * MS, stamps, (block,) if traced else ())

    async def snapshot(self, since: int | None = None) -> Snapshot:
        if not self.ready:
            raise OverloadedError(RefusalReason.RESTARTING)
        done = len(self.blocks)
        blocks = () if since is None else tuple(self.blocks[since:])
        counts = TenantStatus(
            arrived=done,
            waiting=5,
            running=1,
            predicted_ns=2 * MS,
            measured_ns=3 * MS,
            batches={1: 7, 3: 2, 200: 1},
            executions={"1": {1: Executions(done, 2 * MS * done)}} if done else {},
            versions={0: done, 2: 2 * done},
        )
        status = EngineStatus(
            time_ns=time.monotonic_ns(),
            level=1.25,
            level_source="observed",
            conflicts=4,
            capped_blocks=1,
            blocks_started=9,
            blocks_ended=done,
            scheduler_ns=9000,
            scheduler_events=3,
            gap_ns=500,
            gaps=1,
            worker_deaths=2,
            tenants={"sums": counts},
            running=(BlockStatus(7, "sums", 1, 0, 3, 1, (0, 0, 0), (0, 1), False, 0),),
            workers=(WorkerStatus(1, "busy", 7, 0), WorkerStatus(2, "idle", None, 0)),
            blocks=blocks,
            cursor=done,
            sandbox=SandboxStatus(landlock_abi=7, gaps=("no seccomp filter",)),
        )
        return Snapshot(status, "fcfs", (0, 1), 2, 1, 0, 0, 8, False, blocks, done)


ENOUGH_MS = 60_000  # a target that a busy machine keeps, too


class Front:
    def __init__(self, target_ms: int = 7) -> None:
        """`target_ms`: of the tenant sums."""
        tenants = {
            "sums": served("sums", MANIFEST, QoSTarget(target_ms * MS)),
            "one": served("one", replace(MANIFEST, model="shared"), QoSTarget(9 * MS, 0.99)),
            "two": served("two", replace(MANIFEST, model="shared"), QoSTarget(9 * MS)),
        }
        self.engine = NumpyEngine(tenants)
        self.metrics = Metrics({name: (t.manifest.model, t.qos) for name, t in tenants.items()})
        self.metrics.build = {"version": "0", "policy": "fcfs"}
        self.metrics.events, self.metrics.hour = EventHistory(), HourHistory(self.metrics.tenants)
        self.service = InferenceService(self.engine, self.metrics, LIMIT)
        self.dashboard = Dashboard(self.engine, self.metrics, Machine(((0, 1),)))
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


def run(test: Callable[[Front], Awaitable[None]], **options: int) -> None:
    @asynccontextmanager
    async def front() -> AsyncIterator[Front]:
        made = Front(**options)
        try:
            yield made
        finally:
            await made.dashboard.close()
            await made.service.close()
            await made.http.aclose()

    async def main() -> None:
        async with front() as made:
            await test(made)

    asyncio.run(main())


def post_scope(path: str) -> dict[str, Any]:
    """The ASGI scope of a POST request."""
    addresses = {"server": ("a", 1), "client": ("b", 2)}
    http = {"type": "http", "scheme": "http", "http_version": "1.1", "method": "POST"}
    return {**http, "path": path, "root_path": "", "query_string": b"", "headers": [], **addresses}
