"""Results of a run by tenant: counts and latencies, the client's own lag, rows of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from veltair.loadgen.arrivals import Times
from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import Trace
from veltair.loadgen.tenant_streams import TenantStream

LATE_NS = 1_000_000  # a query is late when it is sent later than this and than a 20th of its target
LATE_SHARE = 0.01  # with a larger share of late queries the numbers are the client's, not the server's


@dataclass(frozen=True, slots=True, eq=False)
class TenantOutcomes:
    """Counts and latencies of one tenant's queries that arrived within the measured window.

    >>> latency_ns = np.array([2_000_000, 9_000_000])
    >>> outcomes = TenantOutcomes("m", 5_000_000, 0.95, 10**9, offered=2, refused=0, errors=0, served=2,
    ...                           latency_ns=latency_ns)
    >>> outcomes.in_time, outcomes.qos_rate, outcomes.qos_held
    (1, 0.5, False)
    """

    name: str
    target_ns: int
    percentile: float
    window_ns: int
    offered: int
    refused: int
    errors: int
    served: int  # answered OK *within* the window, including earlier arrivals: throughput without the final drain
    latency_ns: Times  # (answered OK,) from the scheduled arrival, ascending
    refusal_ns: Times = field(default_factory=lambda: np.empty(0, np.int64))  # (refused,) from being sent
    failures: Counter[str] = field(default_factory=Counter)  # by reason, the refusals among them

    @property
    def in_time(self) -> int:
        """Queries answered OK within the target."""
        return int(np.searchsorted(self.latency_ns, self.target_ns, side="right"))

    @property
    def qos_rate(self) -> float | None:
        """Share of *all* offered queries that were answered in time; None when none was offered."""
        return self.in_time / self.offered if self.offered else None

    @property
    def admitted_rate(self) -> float | None:
        """Share of the queries that were not refused that were answered in time; None when all were."""
        admitted = self.offered - self.refused
        return self.in_time / admitted if admitted else None

    @property
    def qos_held(self) -> bool:
        # 1e-9: 0.95 of 100 queries is 95 of them
        return self.offered > 0 and self.in_time >= self.percentile * self.offered - 1e-9


@dataclass(frozen=True, slots=True)
class SendLag:
    """How far the client itself fell behind the schedule.

    >>> SendLag(max_ns=30_000_000, late_share=0.2).too_large
    True
    """

    max_ns: int = 0
    late_share: float = 0.0

    @property
    def too_large(self) -> bool:
        """Whether the latencies measure the client rather than the server."""
        return self.late_share > LATE_SHARE


class TenantResult(msgspec.Struct, frozen=True):
    """A row of the report. Percentiles are over the answered queries, None without any.

    >>> result = TenantResult("m", 40.0, 39.5, 8.0, 14.0, 19.0, target_ms=25.0, qos_rate=0.99, refused=0, errors=0)
    >>> result.p95_ms
    14.0
    """

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
    admitted_rate: float | None = None  # in time, of those that were not refused
    refused_p99_ms: float | None = None  # from the request to its refusal
    failures: dict[str, int] = {}  # by reason, the refusals among them; the most frequent first


def count_outcomes(trace: Trace, streams: Sequence[TenantStream]) -> list[TenantOutcomes]:
    """The outcomes of each stream, in the order of `streams`."""
    low, high = trace.window_ns
    arrival, outcome = trace.schedule.arrival_ns, trace.outcome
    ok = outcome == Outcome.OK
    measured = (arrival >= low) & (arrival < high) & (outcome != Outcome.UNSENT)
    served = ok & (trace.done_ns >= low) & (trace.done_ns < high)
    latency = trace.done_ns - arrival

    def count(i: int, stream: TenantStream) -> TenantOutcomes:
        own = trace.schedule.stream == i
        mine = own & measured
        return TenantOutcomes(
            stream.name,
            stream.target_ns,
            stream.percentile,
            window_ns=high - low,
            offered=int(mine.sum()),
            refused=int((mine & (outcome == Outcome.REFUSED)).sum()),
            errors=int((mine & (outcome == Outcome.ERROR)).sum()),
            served=int((own & served).sum()),
            latency_ns=np.sort(latency[mine & ok]),
            refusal_ns=(trace.done_ns - trace.sent_ns)[mine & (outcome == Outcome.REFUSED)],
            failures=Counter({why: n for (owner, why), n in trace.failures.items() if owner == i}),
        )

    return [count(i, stream) for i, stream in enumerate(streams)]


def pool_outcomes(runs: Sequence[Sequence[TenantOutcomes]]) -> list[TenantOutcomes]:
    """The outcomes of several runs of the same tenants, as if they were one run."""
    return [
        TenantOutcomes(
            own[0].name,
            own[0].target_ns,
            own[0].percentile,
            window_ns=sum(t.window_ns for t in own),
            offered=sum(t.offered for t in own),
            refused=sum(t.refused for t in own),
            errors=sum(t.errors for t in own),
            served=sum(t.served for t in own),
            latency_ns=np.sort(np.concatenate([t.latency_ns for t in own])),
            refusal_ns=np.concatenate([t.refusal_ns for t in own]),
            failures=sum((t.failures for t in own), Counter()),
        )
        for own in zip(*runs, strict=True)
    ]


def summarize(outcomes: TenantOutcomes) -> TenantResult:
    """One row of the report."""
    seconds = outcomes.window_ns / 1e9
    p50_ms = p95_ms = p99_ms = None
    if len(outcomes.latency_ns):
        p50_ms, p95_ms, p99_ms = (np.percentile(outcomes.latency_ns, [50, 95, 99]) / 1e6).round(4).tolist()
    return TenantResult(
        outcomes.name,
        offered_qps=round(outcomes.offered / seconds, 4) if seconds else 0.0,
        qps=round(outcomes.served / seconds, 4) if seconds else 0.0,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        target_ms=outcomes.target_ns / 1e6,
        qos_rate=outcomes.qos_rate,
        refused=outcomes.refused,
        errors=outcomes.errors,
        admitted_rate=outcomes.admitted_rate,
        refused_p99_ms=round(float(np.percentile(outcomes.refusal_ns, 99)) / 1e6, 4) if outcomes.refused else None,
        failures=dict(outcomes.failures.most_common()),
    )


def measure_send_lag(trace: Trace, streams: Sequence[TenantStream]) -> SendLag:
    """The lag of the queries that were sent."""
    sent = trace.outcome != Outcome.UNSENT
    if not sent.any():
        return SendLag()
    lag_ns = (trace.sent_ns - trace.schedule.arrival_ns)[sent]
    targets = np.array([stream.target_ns for stream in streams])
    allowed = np.maximum(LATE_NS, targets // 20)[trace.schedule.stream[sent]]
    return SendLag(int(lag_ns.max()), float((lag_ns > allowed).mean()))
