"""What is counted at the front, and the page that Prometheus reads.

A histogram has an edge exactly at its tenant's target, so the QoS rate read from it is exact. Labels name
configured tenants alone: a client cannot make new series.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from veltair.errors import DeadlineError, OverloadedError, RequestError
from veltair.server.front.engine_client import Snapshot
from veltair.server.front.recent_window import FAILED, OK, REFUSED, SECOND_NS, Window
from veltair.server.ipc.messages import BlockRecord
from veltair.types import QoSTarget

CONTENT_TYPE = CONTENT_TYPE_LATEST
OUTCOMES = ("ok", "invalid", "overloaded", "deadline", "cancelled", "failed")
QUANTILE_SPAN_NS = 60 * SECOND_NS

_EDGES_NS = tuple(
    step * 10**power for power in range(5, 10) for step in (1, 2, 5)
)  # 100 us … 5 s; the target is put between


_BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64, 128)


def _batch_buckets(sizes: Mapping[int, int]) -> list[tuple[str, float]]:
    """Cumulative, as (le in queries, count)."""
    rows = [(str(edge), float(sum(n for size, n in sizes.items() if size <= edge))) for edge in _BATCH_EDGES]
    return [*rows, ("+Inf", float(sum(sizes.values())))]


def outcome_of(error: BaseException) -> str:
    """The label of a request that ended with this error."""
    if isinstance(error, RequestError):
        return "invalid"
    if isinstance(error, OverloadedError):
        return "overloaded"
    if isinstance(error, DeadlineError):
        return "deadline"
    return "failed" if isinstance(error, Exception) else "cancelled"


class Histogram:
    """Counts of durations, integers of nanoseconds, by upper edge (inclusive)."""

    __slots__ = ("_counts", "_edges_ns", "_sum_ns")

    def __init__(self, *extra_edges_ns: int) -> None:
        self._edges_ns = sorted({*_EDGES_NS, *extra_edges_ns})
        self._counts = [0] * (len(self._edges_ns) + 1)
        self._sum_ns = 0

    def add(self, duration_ns: int) -> None:
        self._counts[bisect_left(self._edges_ns, duration_ns)] += 1
        self._sum_ns += duration_ns

    @property
    def count(self) -> int:
        return sum(self._counts)

    @property
    def sum_ns(self) -> int:
        return self._sum_ns

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as (le in seconds, count)."""
        total, rows = 0, []
        for edge, count in zip([*self._edges_ns, None], self._counts, strict=True):
            total += count
            rows.append(("+Inf" if edge is None else repr(edge / SECOND_NS), float(total)))
        return rows


@dataclass(slots=True)
class TenantMetrics:
    """One tenant's counts since the front started."""

    model: str
    target_ns: int
    duration: Histogram  # arrival to answer, of the answered
    queue: Histogram
    execution: Histogram
    window: Window
    outcomes: Counter[str]
    versions: Counter[int]  # layers run in each code version
    qos_met: int = 0
    inferences: int = 0  # batch elements
    last_ms: int = 0  # of the last answer, wall clock since 1970
    failed_ns: int = 0  # arrival to refusal or failure, summed

    def answered(
        self, duration_ns: int, queue_ns: int, execute_ns: int, batch: int, blocks: Iterable[BlockRecord]
    ) -> None:
        self.outcomes["ok"] += 1
        self.qos_met += duration_ns <= self.target_ns
        self.inferences += batch
        self.duration.add(duration_ns)
        self.queue.add(queue_ns)
        self.execution.add(execute_ns)
        self.window.add(time.monotonic_ns(), duration_ns, OK)
        self.last_ms = time.time_ns() // 1_000_000
        for block in blocks:
            for version in block.versions:
                self.versions[version] += 1

    def ended(self, error: BaseException, duration_ns: int) -> None:
        """A request that got an error, or whose client left. Those at fault themselves leave the QoS rate alone."""
        outcome = outcome_of(error)
        self.outcomes[outcome] += 1
        self.failed_ns += duration_ns
        if outcome in ("overloaded", "deadline"):
            self.window.add(time.monotonic_ns(), duration_ns, REFUSED)
        elif outcome == "failed":
            self.window.add(time.monotonic_ns(), duration_ns, FAILED)


class Metrics:
    def __init__(self, targets: Mapping[str, tuple[str, QoSTarget]]) -> None:
        """`targets` is (model, target) by tenant."""
        self.strangers = 0  # requests for a model that nobody serves
        self.malformed = 0  # requests that could not be decoded
        self.tenants = {
            name: TenantMetrics(
                model=model,
                target_ns=qos.latency_ns,
                duration=Histogram(qos.latency_ns),
                queue=Histogram(),
                execution=Histogram(),
                window=Window(qos.latency_ns, qos.percentile),
                outcomes=Counter(),
                versions=Counter(),
            )
            for name, (model, qos) in targets.items()
        }
        self._snapshot: Snapshot | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self, snapshot: Snapshot | None) -> bytes:
        """The text for /metrics; without the engine's part while there is no engine."""
        self._snapshot = snapshot
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        if self._snapshot is not None:
            yield from self._engine(self._snapshot)

    def _requests(self) -> Iterator[Metric]:
        labels = ("tenant", "model")
        duration = HistogramMetricFamily(
            "veltair_request_duration_seconds", "Arrival to answer, of answered requests", labels=labels
        )
        queue = HistogramMetricFamily("veltair_queue_wait_seconds", "Arrival to the first block", labels=labels)
        execution = HistogramMetricFamily("veltair_execution_seconds", "Time in blocks", labels=labels)
        outcomes = CounterMetricFamily("veltair_requests", "Requests by how they ended", labels=(*labels, "outcome"))
        met = CounterMetricFamily("veltair_qos_met", "Answered within the target", labels=labels)
        target = GaugeMetricFamily("veltair_qos_target_seconds", "The latency target", labels=labels)
        inferences = CounterMetricFamily("veltair_inferences", "Batch elements answered", labels=labels)
        versions = CounterMetricFamily(
            "veltair_code_versions", "Layers run in each code version", labels=(*labels, "version")
        )
        latency = GaugeMetricFamily(
            "veltair_latency_seconds", "Quantiles of the last 60 s", labels=(*labels, "quantile")
        )
        now_ns = time.monotonic_ns()
        for name, t in self.tenants.items():
            key = (name, t.model)
            for family, histogram in ((duration, t.duration), (queue, t.queue), (execution, t.execution)):
                family.add_metric(key, histogram.buckets(), histogram.sum_ns / SECOND_NS)
            for outcome in OUTCOMES:
                outcomes.add_metric((*key, outcome), t.outcomes[outcome])
            for version, count in sorted(t.versions.items()):
                versions.add_metric((*key, str(version)), count)
            met.add_metric(key, t.qos_met)
            target.add_metric(key, t.target_ns / SECOND_NS)
            inferences.add_metric(key, t.inferences)
            recent = t.window.stats(now_ns - QUANTILE_SPAN_NS, now_ns + 1)
            for quantile, ms in (("0.5", recent.p50_ms), ("0.95", recent.p95_ms), ("0.99", recent.p99_ms)):
                if ms is not None:
                    latency.add_metric((*key, quantile), ms / 1e3)
        yield from (duration, queue, execution, outcomes, met, target, inferences, versions, latency)
        yield CounterMetricFamily(
            "veltair_unknown_model_requests", "Requests for a model that nobody serves", value=self.strangers
        )
        yield CounterMetricFamily(
            "veltair_malformed_requests", "Requests that could not be decoded", value=self.malformed
        )

    def _engine(self, snapshot: Snapshot) -> Iterator[Metric]:
        s = snapshot.status
        waiting = GaugeMetricFamily("veltair_queue_depth", "Queries waiting for their first block", labels=("tenant",))
        running = GaugeMetricFamily("veltair_queries_running", "Queries started and not ended", labels=("tenant",))
        allocated = GaugeMetricFamily("veltair_cores_allocated", "Cores held by blocks now", labels=("tenant",))
        for name in self.tenants:
            count = s.tenants.get(name)
            waiting.add_metric((name,), count.waiting if count else 0)
            running.add_metric((name,), count.running if count else 0)
            allocated.add_metric((name,), sum(len(b.cores) for b in s.running if b.tenant == name))
        yield from (waiting, running, allocated)
        batches = HistogramMetricFamily("veltair_batch_queries", "Queries in a batch, by batch", labels=("tenant",))
        for name in self.tenants:
            sizes = s.tenants[name].batches if name in s.tenants else {}
            batches.add_metric((name,), _batch_buckets(sizes), float(sum(size * n for size, n in sizes.items())))
        yield batches
        yield GaugeMetricFamily("veltair_cores", "Cores that may be handed out", value=len(snapshot.cores))
        level = GaugeMetricFamily("veltair_interference_level", "Slowdown against running alone", labels=("source",))
        level.add_metric((s.level_source,), s.level)
        yield level
        yield CounterMetricFamily("veltair_blocks", "Layer-blocks started", value=s.blocks)
        yield CounterMetricFamily("veltair_conflicts", "Blocks that got fewer cores than wanted", value=s.conflicts)
        yield CounterMetricFamily("veltair_capped_blocks", "Blocks capped at the threshold", value=s.capped_blocks)
        yield SummaryMetricFamily(
            "veltair_scheduler_seconds",
            "Time to decide, by event",
            count_value=s.scheduler_events,
            sum_value=s.scheduler_ns / SECOND_NS,
        )
        yield SummaryMetricFamily(
            "veltair_block_gap_seconds",
            "Idle between two blocks of a query started back to back",
            count_value=s.gaps,
            sum_value=s.gap_ns / SECOND_NS,
        )
        workers = GaugeMetricFamily("veltair_workers", "Worker processes by state", labels=("state",))
        states = Counter[str](worker.state for worker in s.workers)
        for state in ("starting", "idle", "busy"):
            workers.add_metric((state,), states[state])
        yield workers
        yield CounterMetricFamily("veltair_engine_restarts", "Engines that died", value=snapshot.engine_restarts)
        yield GaugeMetricFamily("veltair_queries_held", "Queries that hold a slot", value=snapshot.held)
        yield GaugeMetricFamily("veltair_query_slots", "Slots for each tenant", value=snapshot.slots)
        yield CounterMetricFamily("veltair_worker_deaths", "Workers that died and were replaced", value=s.worker_deaths)
