"""Results for people (a table) and for programs (JSON), and the progress bar during a run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.text import Text

from veltair.loadgen.open_loop import RunCounts
from veltair.loadgen.peak import Probe
from veltair.loadgen.scenario import TenantLoad
from veltair.loadgen.tenant_results import TenantResult
from veltair.terminal import Column, ResultTable
from veltair.types import Environment

REFRESH_S = 0.5  # a redraw takes the client about a millisecond
MAX_REASONS = 3  # of failures that are printed per tenant


class ProbeResult(msgspec.Struct, frozen=True):
    """One factor of a peak search.

    >>> result = ProbeResult(2.0, (1,), True, offered_qps=80.0, qps=79.5, qos_rate={"resnet50": 0.97}, max_lag_ms=0.3)
    >>> result.qos_rate["resnet50"]
    0.97
    """

    scale: float
    seeds: tuple[int, ...]
    held: bool
    offered_qps: float
    qps: float
    qos_rate: dict[str, float | None]
    max_lag_ms: float


class Report(msgspec.Struct, frozen=True):
    """The result of `veltair load`, as `--json` prints it.

    >>> client = Environment("EPYC", ("avx2",), 2, 1 << 34, "6.18", "3.11")
    >>> Report([], None, client, max_lag_ms=0.3, client_cpu_us_per_query=12.5).environment.cores
    2
    """

    tenants: list[TenantResult]  # at the peak, where one was searched
    peak_qps: float | None  # served, all tenants together; 0: no load held; None: not searched, or stopped
    environment: Environment  # of the client's machine
    max_lag_ms: float | None  # the client's own worst delay in sending; None: not known (MLPerf's engine)
    client_cpu_us_per_query: float | None  # the client's CPU time, over all runs; None: not known
    probes: list[ProbeResult] | msgspec.UnsetType = msgspec.UNSET
    unstable: str | msgspec.UnsetType | None = msgspec.UNSET  # why the peak that was found may not be found again


def probe_result(probe: Probe) -> ProbeResult:
    """A probe's row of the report."""
    return ProbeResult(
        round(probe.scale, 6),
        probe.seeds,
        probe.held,
        round(sum(t.offered / (t.window_ns / 1e9) for t in probe.tenants), 4),
        round(probe.qps, 4),
        {t.name: t.qos_rate for t in probe.tenants},
        probe.lag.max_ns / 1e6,
    )


RESULT_COLUMNS = (
    Column("tenant", is_name=True),
    Column("offered\nQPS", rank=2),
    Column("served\nQPS"),
    Column("p50\nms", rank=3),
    Column("p95\nms", rank=1),
    Column("p99\nms"),
    Column("target\nms"),
    Column("QoS rate\n%"),
    Column("refused"),
    Column("errors"),
)


def results_table(results: Sequence[TenantResult], tenants: Sequence[TenantLoad], title: str) -> ResultTable:
    """One row per tenant; values that breach a target are red, and nothing else."""
    table = ResultTable(RESULT_COLUMNS, title)
    wanted = {tenant.name: tenant for tenant in tenants}
    for row in results:
        percentile = wanted[row.name].percentile
        breach = row.qos_rate is not None and row.qos_rate < percentile - 1e-9
        # A higher percentile than the one that is promised may well be beyond the target.
        over = {p: ms is not None and ms > row.target_ms and p <= percentile for p, ms in _percentiles(row)}
        table.add(
            Text(row.name),
            f"{row.offered_qps:.1f}",
            f"{row.qps:.1f}",
            *(_cell(_ms(ms), red=over[p]) for p, ms in _percentiles(row)),
            f"{row.target_ms:g} p{percentile * 100:g}",
            _cell("-" if row.qos_rate is None else f"{row.qos_rate * 100:.1f}", red=breach),
            str(row.refused),
            str(row.errors),
        )
    return table


def print_failures(console: Console, results: Sequence[TenantResult]) -> None:
    """Print the most frequent reasons per tenant, which explain the counts of the table."""
    for row in results:
        for why, count in Counter(row.failures).most_common(MAX_REASONS):
            console.print(f"{row.name}: {count} x {why}")


@asynccontextmanager
async def progress_bar(
    console: Console, what: str, total_s: float, counts: RunCounts | None = None
) -> AsyncIterator[None]:
    """Show elapsed time and counts while the body of the `async with` runs; draws nothing without a terminal."""
    if not console.is_terminal:
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f} s"),
        TextColumn("{task.fields[left]}", style="dim"),
    )
    # No thread of rich's own, which would take the interpreter from the queries at any moment.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task(what, total=total_s, left="")
        drawing = asyncio.create_task(_draw(progress, task, total_s, counts))
        try:
            yield
        finally:
            drawing.cancel()


async def _draw(progress: Progress, task: TaskID, total_s: float, counts: RunCounts | None) -> None:
    start = time.monotonic()
    while True:
        left = total_s - (time.monotonic() - start)
        text = f"{left:.0f} s left" if left > 0 else "waiting for the last answers"
        if counts is not None:
            text += f", {counts.sent} sent, {counts.sent - counts.done} in flight"
        progress.update(task, completed=min(total_s, total_s - left), left=text, refresh=True)
        await asyncio.sleep(REFRESH_S)


def _percentiles(row: TenantResult) -> list[tuple[float, float | None]]:
    return [(0.50, row.p50_ms), (0.95, row.p95_ms), (0.99, row.p99_ms)]


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _cell(text: str, *, red: bool) -> Text:
    return Text(text, style="red" if red else "")
