"""What a run showed, tenant by tenant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from veltair.loadgen.arrivals import Times
from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import Trace
from veltair.loadgen.tenant_streams import Stream

LATE_NS = 1_000_000  # a query sent later than this, or than a 20th of its target, was sent late
LATE_SHARE = 0.01  # more late ones than this and the numbers are the client's, not the server's


@dataclass(frozen=True, slots=True, eq=False)
class Tally:
    """One tenant's queries that arrived within the measured window."""

    name: str
    target_ns: int
    percentile: float
    window_ns: int
    offered: int
    refused: int
    errors: int
    served: int  # answered OK *within* the window, whenever they arrived: throughput without the final drain
    latency_ns: Times  # (answered OK,) from the scheduled arrival, ascending

    @property
    def within(self) -> int:
        """Queries answered OK within the target."""
        return int(np.searchsorted(self.latency_ns, self.target_ns, side="right"))

    @property
    def qos_rate(self) -> float | None:
        """Share of *all* offered queries that were answered in time; None when none was offered."""
        return self.within / self.offered if self.offered else None

    @property
    def qos_held(self) -> bool:
        # 1e-9: 0.95 of 100 queries is 95 of them
        return self.offered > 0 and self.within >= self.percentile * self.offered - 1e-9


@dataclass(frozen=True, slots=True)
class Lag:
    """How far the client itself fell behind the schedule."""

    max_ns: int = 0
    late_share: float = 0.0

    @property
    def lies(self) -> bool:
        return self.late_share > LATE_SHARE


class TenantResult(msgspec.Struct, frozen=True):
    """A row of the report. Percentiles are over the answered queries, None when there are none."""

    name: str
    offered_qps: float
    qps: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    target_ms: float
    qos_rate: float | None
    refused: int
    errors: int


def tallies(trace: Trace, streams: Sequence[Stream]) -> list[Tally]:
    low, high = trace.window_ns
    arrival, outcome = trace.plan.arrival_ns, trace.outcome
    ok = outcome == Outcome.OK
    measured = (arrival >= low) & (arrival < high) & (outcome != Outcome.UNSENT)
    served = ok & (trace.done_ns >= low) & (trace.done_ns < high)
    latency = trace.done_ns - arrival

    def tally(i: int, stream: Stream) -> Tally:
        own = trace.plan.stream == i
        mine = own & measured
        return Tally(
            stream.name,
            stream.target_ns,
            stream.percentile,
            window_ns=high - low,
            offered=int(mine.sum()),
            refused=int((mine & (outcome == Outcome.REFUSED)).sum()),
            errors=int((mine & (outcome == Outcome.ERROR)).sum()),
            served=int((own & served).sum()),
            latency_ns=np.sort(latency[mine & ok]),
        )

    return [tally(i, stream) for i, stream in enumerate(streams)]


def pooled(runs: Sequence[Sequence[Tally]]) -> list[Tally]:
    """The tallies of several runs of the same tenants as if they had been one."""
    return [
        Tally(
            own[0].name,
            own[0].target_ns,
            own[0].percentile,
            window_ns=sum(t.window_ns for t in own),
            offered=sum(t.offered for t in own),
            refused=sum(t.refused for t in own),
            errors=sum(t.errors for t in own),
            served=sum(t.served for t in own),
            latency_ns=np.sort(np.concatenate([t.latency_ns for t in own])),
        )
        for own in zip(*runs, strict=True)
    ]


def result(tally: Tally) -> TenantResult:
    seconds = tally.window_ns / 1e9
    p50_ms = p95_ms = p99_ms = None
    if len(tally.latency_ns):
        p50_ms, p95_ms, p99_ms = (np.percentile(tally.latency_ns, [50, 95, 99]) / 1e6).round(4).tolist()
    return TenantResult(
        tally.name,
        offered_qps=round(tally.offered / seconds, 4) if seconds else 0.0,
        qps=round(tally.served / seconds, 4) if seconds else 0.0,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        target_ms=tally.target_ns / 1e6,
        qos_rate=tally.qos_rate,
        refused=tally.refused,
        errors=tally.errors,
    )


def lag(trace: Trace, streams: Sequence[Stream]) -> Lag:
    sent = trace.outcome != Outcome.UNSENT
    if not sent.any():
        return Lag()
    behind = (trace.sent_ns - trace.plan.arrival_ns)[sent]
    targets = np.array([stream.target_ns for stream in streams])
    allowed = np.maximum(LATE_NS, targets // 20)[trace.plan.stream[sent]]
    return Lag(int(behind.max()), float((behind > allowed).mean()))
