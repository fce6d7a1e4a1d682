"""`load_test`: an open-loop load on a daemon, and what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.api.client import Client
from veltair.api.daemon import Daemon
from veltair.api.plotting import draw_tails
from veltair.errors import ConfigError
from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import Trace, draw_schedule
from veltair.loadgen.report import results_table
from veltair.loadgen.run_schedule import run_schedule
from veltair.loadgen.scenario import Scenario, TenantLoad, parse_scenario, read_scenario
from veltair.loadgen.tenant_results import TenantResult, count_outcomes, measure_send_lag, summarize
from veltair.loadgen.tenant_streams import TenantStream, connect, prepare_streams
from veltair.terminal import UNBOUNDED

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load test found. `print` shows a table of the tenants.

    ::

        result = veltair.load_test(daemon, {"resnet50": 20, "dlrm": 500})
        result["resnet50"].p99_ms, result["resnet50"].qos_rate
        result.plot("tails.png")
    """

    scenario: Scenario
    tenants: tuple[TenantResult, ...]
    latencies_ms: dict[str, NDArray[np.float64]]  # of the answered queries, from the scheduled arrival
    max_lag_ms: float  # the client's own worst delay in sending: with much of it, the figures are the client's

    def __getitem__(self, tenant: str) -> TenantResult:
        return next(each for each in self.tenants if each.name == tenant)

    def plot(self, path: str | Path | None = None) -> Figure:
        """The tail of each tenant's latencies beside its target. Needs matplotlib (`veltair[plot]`)."""
        targets = {tenant.name: tenant.target_ms for tenant in self.scenario.tenants}
        return draw_tails(self.latencies_ms, targets, self.scenario.load.target, path)

    def __str__(self) -> str:
        table = results_table(self.tenants, self.scenario.tenants, self.scenario.load.target)
        return "\n".join(line.plain for line in table.lines(UNBOUNDED))


def load_test(
    target: Daemon | str | Path,
    tenants: Mapping[str, float] | Sequence[TenantLoad] = (),
    *,
    duration_s: float = 10.0,
    warmup_s: float = 1.0,
    seed: int = 1,
    connections: int = 4,
) -> LoadResult:
    """Send each tenant's queries at their times, whatever becomes of those before them, and wait for their ends.

    ::

        print(veltair.load_test("grpc://127.0.0.1:8001", {"resnet50": 20, "dlrm": 500}, duration_s=30))

    Args:
        target: a `Daemon`, or the address of one; or a scenario file, which says everything else as well.
        tenants: queries a second by model, against the target that the server states; `TenantLoad` says more.
        seed: of arrivals and inputs, which are the same for the same seed.

    Raises ConfigError where the server cannot be reached, or does not serve a model.
    """
    if isinstance(target, Path) or (isinstance(target, str) and target.endswith(".toml")):
        scenario = read_scenario(Path(target))
    else:
        address = target.address if isinstance(target, Daemon) else target
        listed = _with_targets(address, tenants) if isinstance(tenants, Mapping) else list(tenants)
        load = {"target": address, "duration_s": duration_s, "warmup_s": warmup_s, "seed": seed}
        load["connections"] = connections
        scenario = parse_scenario({"load": load, "tenants": msgspec.to_builtins(listed)}, "veltair.load_test")
    with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop that runs already
        streams, trace = thread.submit(asyncio.run, _measure(scenario)).result()
    answered = trace.outcome == Outcome.OK
    low, high = trace.window_ns
    arrival = trace.schedule.arrival_ns
    measured = answered & (arrival >= low) & (arrival < high)
    latency_ms = (trace.done_ns - arrival) / 1e6
    return LoadResult(
        scenario,
        tuple(summarize(outcomes) for outcomes in count_outcomes(trace, streams)),
        {stream.name: latency_ms[measured & (trace.schedule.stream == i)] for i, stream in enumerate(streams)},
        measure_send_lag(trace, streams).max_ns / 1e6,
    )


def _with_targets(address: str, rates: Mapping[str, float]) -> list[TenantLoad]:
    with Client(address) as client:
        found = []
        for model, qps in rates.items():
            qos = client.describe(model).target
            if qos is None:
                raise ConfigError(f"model {model!r}: the server states no target; give a TenantLoad with one")
            found.append(TenantLoad(model, qps, qos.latency_ns / 1e6, qos.percentile))
        return found


async def _measure(scenario: Scenario) -> tuple[list[TenantStream], Trace]:
    load = scenario.load
    client = await connect(load)
    try:
        streams = await prepare_streams(client, scenario.tenants, load.seed)
        schedule = draw_schedule(streams, 1.0, load.seed, load.warmup_s, load.duration_s)
        return streams, await run_schedule(client, streams, schedule, asyncio.Event())
    finally:
        await client.close()
