"""The figures of a simulation as JSON for programs and as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from rich.console import Console
from rich.text import Text

from veltair.loadgen.tenant_results import TenantOutcomes
from veltair.simulation.peak_search import RateTrial
from veltair.simulation.simulation_scenario import TenantWorkload
from veltair.terminal import Column, ResultTable


class TenantSummary(msgspec.Struct, frozen=True):
    """Figures of one tenant. Times are from arrival to answer, of answered queries; None where there are none.

    >>> TenantSummary("resnet50", 120.0, 0.96, 5.1, 9.8, 12.0, 6.2, offered=1200, refused=0).qos_rate
    0.96
    """

    name: str
    qps: float  # answered within the measured time
    qos_rate: float | None  # share of all that arrived that were answered in time
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    mean_ms: float | None
    offered: int
    refused: int
    lost: int = 0  # of machines that died before they answered


class PolicySummary(msgspec.Struct, frozen=True):
    """Figures of one policy: at the peak where it was searched, else at the scenario's rates.

    >>> PolicySummary("veltair", None, 150.0, 0.01, 0.02, []).peak_qps is None
    True
    """

    policy: str
    peak_qps: float | None  # answered queries of all tenants; 0: no rate held; None: not searched
    offered_qps: float  # of all tenants together, in the runs that the other figures are of
    conflict_rate: float  # share of the blocks that started on fewer cores than they wanted
    core_seconds_per_query: float | None  # cores held x time
    tenants: list[TenantSummary]
    router: str | None = None  # of many machines

    @property
    def title(self) -> str:
        return self.policy if self.router is None else f"{self.policy}, {self.router}"


def summarize(policy: str, tried: RateTrial, peak_qps: float | None, router: str | None = None) -> PolicySummary:
    """Returns the figures of a policy from a trial of one rate."""
    blocks, served = sum(run.blocks for run in tried.runs), sum(outcome.served for outcome in tried.outcomes)
    return PolicySummary(
        policy,
        None if peak_qps is None else round(peak_qps, 4),
        round(tried.offered_qps, 4),
        round(sum(run.conflicts for run in tried.runs) / blocks, 6) if blocks else 0.0,
        round(sum(run.core_ns for run in tried.runs) / 1e9 / served, 6) if served else None,
        [_summarize_tenant(outcome) for outcome in tried.outcomes],
        router,
    )


def _summarize_tenant(outcome: TenantOutcomes) -> TenantSummary:
    p50_ms = p95_ms = p99_ms = mean_ms = None
    if len(outcome.latency_ns):
        p50_ms, p95_ms, p99_ms = (np.percentile(outcome.latency_ns, [50, 95, 99]) / 1e6).round(4).tolist()
        mean_ms = round(float(outcome.latency_ns.mean()) / 1e6, 4)
    qos_rate = None if outcome.qos_rate is None else round(outcome.qos_rate, 6)
    qps = round(outcome.served / outcome.window_ns * 1e9, 4) if outcome.window_ns else 0.0
    return TenantSummary(
        outcome.name,
        qps,
        qos_rate,
        p50_ms,
        p95_ms,
        p99_ms,
        mean_ms,
        outcome.offered,
        outcome.refused,
        outcome.errors,
    )


def print_results(
    console: Console, results: Sequence[PolicySummary], tenants: Sequence[TenantWorkload], machine: str, cores: int
) -> None:
    """Prints a line for each policy, then one for each tenant under each policy; only breached targets are red."""
    rate_heading = "peak\nQPS" if results[0].peak_qps is not None else "offered\nQPS"
    policies = ResultTable(
        (
            Column("policy", is_name=True),
            Column(rate_heading),
            Column("conflicts\n%", rank=2),
            Column("core-ms\n/query", rank=1),
        )
    )
    by_tenant = ResultTable(
        (
            Column("policy", is_name=True),
            Column("tenant", is_name=True),
            Column("QPS"),
            Column("QoS rate\n%"),
            Column("p50\nms", rank=2),
            Column("p95\nms", rank=1),
            Column("p99\nms"),
        )
    )
    for row in results:
        shown = row.peak_qps if row.peak_qps is not None else row.offered_qps
        work = "-" if row.core_seconds_per_query is None else f"{row.core_seconds_per_query * 1e3:.1f}"
        policies.add(row.title, f"{shown:.1f}", f"{row.conflict_rate * 100:.1f}", work)
        policy = row.title
        for load, tenant in zip(tenants, row.tenants, strict=True):
            rate = tenant.qos_rate
            breach = rate is not None and rate < load.percentile - 1e-9
            by_tenant.add(
                policy,
                Text(tenant.name),
                f"{tenant.qps:.1f}",
                Text("-" if rate is None else f"{rate * 100:.1f}", style="red" if breach else ""),
                *("-" if ms is None else f"{ms:.2f}" for ms in (tenant.p50_ms, tenant.p95_ms, tenant.p99_ms)),
            )
            policy = ""
    console.print(Text(f"{machine}, {cores} cores", style="bold"), soft_wrap=True)
    for table in (policies, by_tenant):
        console.print()
        table.print(console)
