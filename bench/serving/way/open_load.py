"""Open-loop loads of a server: its greatest rate within targets, and what a query costs at a given rate."""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import uvloop

from bench.paths import CLI
from bench.serving.daemon import write_toml
from bench.serving.way.server_cpu import cpu_ns
from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import Trace, draw_schedule
from veltair.loadgen.run_schedule import run_schedule
from veltair.loadgen.scenario import LoadSettings, TenantLoad
from veltair.loadgen.tenant_streams import TenantStream, connect, prepare_streams

SEED = 1
WARM_UP = 0.2  # of the seconds, before those that count


def find_peak(target: str, tenants: Sequence[TenantLoad], seconds: float) -> float:
    """Queries a second at the greatest load at which every tenant keeps its percentile in target; 0 where none holds.

    `veltair load --find-peak` searches it, on the same cores as the server, with loads that are held for `seconds`.
    """
    load = {"target": target, "duration_s": seconds, "warmup_s": WARM_UP * seconds, "seed": SEED}
    document = {"load": load, "tenants": [_as_table(tenant) for tenant in tenants]}
    with tempfile.TemporaryDirectory(prefix="veltair-way-") as folder:
        scenario = Path(folder) / "scenario.toml"
        write_toml(scenario, document)
        command = [*CLI, "load", str(scenario), "--find-peak", "--seeds", "1", "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(json.loads(done.stdout)["peak_qps"] or 0.0)


def _as_table(tenant: TenantLoad) -> dict[str, Any]:
    return {key: value for key, value in msgspec.structs.asdict(tenant).items() if value is not None}


def drive(root: int, target: str, tenants: Sequence[TenantLoad], seconds: float) -> dict[str, Any]:
    """Holds a load for `seconds` and returns what a query took: latency by tenant, CPU time by role and of the client.

    The client is that of `veltair load`, in this process.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_drive(root, target, tenants, seconds))


async def _drive(root: int, target: str, tenants: Sequence[TenantLoad], seconds: float) -> dict[str, Any]:
    client = await connect(LoadSettings(target))
    try:
        streams = await prepare_streams(client, tenants, SEED)

        async def hold(duration_s: float) -> Trace:
            schedule = draw_schedule(streams, 1.0, SEED, 0.0, duration_s)
            return await run_schedule(client, streams, schedule, asyncio.Event())

        await hold(WARM_UP * seconds)
        before = {"client": time.process_time_ns(), **cpu_ns(root)}
        trace = await hold(seconds)
        after = {"client": time.process_time_ns(), **cpu_ns(root)}
    finally:
        await client.close()
    queries = len(trace.schedule.arrival_ns)
    cpu_ms = {role: round((after[role] - before[role]) / queries / 1e6, 4) for role in before}
    client_ms = cpu_ms.pop("client")
    return {
        "qps": sum(tenant.qps for tenant in tenants),
        "queries": queries,
        "client_cpu_ms": client_ms,
        "server_cpu_ms": cpu_ms,
        "tenants": latencies(trace, streams),
    }


def latencies(trace: Trace, streams: Sequence[TenantStream]) -> dict[str, dict[str, float]]:
    """Numbers of each tenant: queries, those that were answered, and their latency from the scheduled arrival.

    A tenant without queries is left out. Raises SystemExit where none was answered, because nothing was measured then.
    """
    found = {}
    for number, stream in enumerate(streams):
        own = trace.schedule.stream == number
        if not own.any():
            continue
        answered = own & (trace.outcome == Outcome.OK)
        if not answered.any():
            raise SystemExit(f"{stream.name}: no query was answered: {dict(trace.failures)}")
        took_ms = (trace.done_ns - trace.schedule.arrival_ns)[answered] / 1e6
        p50_ms, p95_ms = np.percentile(took_ms, [50, 95]).round(4).tolist()
        found[stream.name] = {
            "queries": int(own.sum()),
            "answered": int(answered.sum()),
            "mean_ms": round(float(took_ms.mean()), 4),
            "p50_ms": p50_ms,
            "p95_ms": p95_ms,
        }
    return found
