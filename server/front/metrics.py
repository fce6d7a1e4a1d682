"""`Metrics`: the counts of all tenants, and the page that Prometheus reads.

A histogram has an edge exactly at its tenant's target, so the QoS rate read from it is exact. Labels name configured
tenants and the daemon's own processes alone: a client cannot create new series.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition

from veltair.errors import RefusalReason, RefusedError, RequestError
from veltair.server.front.counts.engine_totals import EngineTotals
from veltair.server.front.monitor.event_history import EventHistory
from veltair.server.front.monitor.hour_history import HourHistory
from veltair.server.front.process_metrics import DaemonProcess, process_metrics
from veltair.server.front.recent_window import SECOND_NS
from veltair.server.front.request_counts import RequestCounts
from veltair.server.front.request_metrics import connection_metrics, slo_metrics, tenant_request_metrics
from veltair.server.front.snapshot import Snapshot
from veltair.server.ipc.daemon_events import EventKind
from veltair.server.ipc.status_records import TenantStatus
from veltair.server.protocol.failed_queries import log_failed_query
from veltair.server.repository.model_memory import KINDS, MemoryMoves
from veltair.server.wire.io_threads import ConnectionCounts
from veltair.types import QoSTarget

CONTENT_TYPE = CONTENT_TYPE_LATEST
OPENMETRICS_TYPE = openmetrics_exposition.CONTENT_TYPE_LATEST
NO_COUNTS = TenantStatus()
_BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64, 128)


def wants_openmetrics(accept: str) -> bool:
    """Whether an Accept header names OpenMetrics, as Prometheus does where it is to be preferred.

    >>> wants_openmetrics("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"), wants_openmetrics("*/*")
    (True, False)
    """
    return any(part.split(";")[0].strip().lower() == "application/openmetrics-text" for part in accept.split(","))


class Metrics:
    """Counts by tenant, and `/metrics` from them and a snapshot of the engine.

    >>> metrics = Metrics({"mlp": ("mlp", QoSTarget(10_000_000))})
    >>> metrics.tenants["mlp"].count_answer((100_000, 20_000, 80_000, 3_000_000, 0, 300_000, 500_000), batch=1)
    >>> b'veltair_qos_met_total{model="mlp",tenant="mlp"} 1.0' in metrics.page(snapshot=None)
    True
    """

    def __init__(self, targets: Mapping[str, tuple[str, QoSTarget]]) -> None:
        """`targets` is (model, target) by tenant."""
        self.unknown_model_requests = 0  # requests for a model that no tenant serves
        self.malformed_requests = 0  # requests that could not be decoded
        self.denied: Mapping[str, int] = {}  # requests of nobody, and of who may not: `Access.denied`
        self.tenants = {name: RequestCounts(model, qos) for name, (model, qos) in targets.items()}
        self.tenant_of: Callable[[int], str | None] = list(self.tenants).__getitem__  # by the engine's number
        self.version_of: Callable[[int], str] = lambda number: "1"  # of the tenant's model, likewise
        self.engines = EngineTotals()
        self.memory_moves: Callable[[], MemoryMoves] = MemoryMoves
        self.on_ended: Callable[[int, int], None] = lambda number, time_ns: None  # hears of each tenant's last one
        self.connections: Callable[[], ConnectionCounts] | None = None  # of the I/O threads
        self.refused_early: Counter[str] = Counter()  # by RefusalReason, by Python before the tenant was known
        self.refused_by_threads: Callable[[], Mapping[str, int]] = dict  # likewise, by the I/O threads
        self.traces: Callable[[], Mapping[str, int]] = dict  # of queries, by what became of each; empty: there are none
        self.certificate_days: Callable[[], Mapping[str, float]] = dict  # until each expires, by the key of its file
        self.build: Mapping[str, str] = {}  # version, policy, …
        self.hour: HourHistory | None = None
        self.events: EventHistory | None = None
        self.refresh: Callable[[], None] = lambda: None  # counts what has ended without Python; before any reading
        self._snapshot: Snapshot | None = None
        self._processes: Sequence[DaemonProcess] = ()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def know(self, name: str, model: str, qos: QoSTarget) -> None:
        """Count a tenant's requests, and judge them by this target from here on."""
        if (known := self.tenants.get(name)) is None:
            self.tenants[name] = RequestCounts(model, qos)
        else:
            known.model = model
            known.aim_at(qos)

    def page(
        self, snapshot: Snapshot | None, processes: Sequence[DaemonProcess] = (), *, openmetrics: bool = False
    ) -> bytes:
        """The text for /metrics, without the engine's part while there is no engine."""
        self._snapshot, self._processes = snapshot, processes
        if snapshot is not None:
            self.follow(snapshot)
        self.refresh()
        if openmetrics:
            text: bytes = openmetrics_exposition.generate_latest(self._registry)  # type: ignore[no-untyped-call]
            return text
        return generate_latest(self._registry)

    def follow(self, snapshot: Snapshot) -> None:
        """Take over what the engine has counted."""
        self.engines.follow(snapshot.engine_restarts, snapshot.status)

    def count_ended(self, records: NDArray[Any]) -> None:
        """Count requests that have ended without Python: ENDED_REQUEST, and `tenant`, a number."""
        monotonic_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        for number in np.unique(records["tenant"]).tolist():
            name, own = self.tenant_of(number), records[records["tenant"] == number]
            self.on_ended(number, int(own["end_ns"].max()))
            if name is not None:
                self.tenants[name].count_batch(own, monotonic_ns, wall_ns, self.version_of(number))

    def count_unread(self, error: RequestError | RefusedError) -> None:
        """Count a request that ended before its tenant was known: it could not be decoded, or there was no memory."""
        if isinstance(error, RefusedError):
            self.refused_early[error.reason] += 1
        else:
            self.malformed_requests += 1

    def log_failed(self, query: int, tenant: int, request_id: str, why: str) -> None:
        """Log a query that has failed without Python, of the tenant with this number."""
        log_failed_query(query, self.tenant_of(tenant) or "a tenant that is gone", request_id, why)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        yield from tenant_request_metrics(self.tenants)
        yield from slo_metrics(self.tenants, self.hour)
        yield from self._other_metrics()
        if self.connections is not None:
            yield from connection_metrics(self.connections())
        if self._snapshot is not None:
            yield from self._tenant_metrics(self._snapshot)
            yield from self._engine_metrics(self._snapshot)
            yield from self._memory_metrics(self._snapshot)
        yield from process_metrics(self._processes)

    def early_refusals(self) -> dict[str, int]:
        """Requests that were refused before their tenant was known, so far, by RefusalReason."""
        of_threads = self.refused_by_threads()
        return {reason: self.refused_early[reason] + of_threads.get(reason, 0) for reason in RefusalReason}

    def _other_metrics(self) -> Iterator[Metric]:
        build = InfoMetricFamily("veltair_build", "What this daemon is")
        build.add_metric((), dict(self.build))
        yield build
        early = CounterMetricFamily(
            "veltair_early_refusals", "Requests refused before their tenant was known, by reason", labels=("reason",)
        )
        for reason, refused in self.early_refusals().items():
            early.add_metric((reason,), refused)
        yield early
        if self.events is not None:
            events = CounterMetricFamily("veltair_events", "What happened to the daemon, by kind", labels=("kind",))
            for kind in EventKind:
                events.add_metric((kind,), self.events.counts[kind])
            yield events
        if days := self.certificate_days():
            left = GaugeMetricFamily("veltair_certificate_days_left", "Until a certificate expires", labels=("file",))
            for file, value in days.items():
                left.add_metric((file,), value)
            yield left
        if told := self.traces():
            traces = CounterMetricFamily("veltair_traces", "Traces for the collector", labels=("outcome",))
            for outcome, count in told.items():
                traces.add_metric((outcome,), count)
            yield traces
        yield CounterMetricFamily(
            "veltair_unknown_model_requests", "Requests for a model that is not served", self.unknown_model_requests
        )
        yield CounterMetricFamily(
            "veltair_malformed_requests", "Requests that could not be decoded", self.malformed_requests
        )
        denied = CounterMetricFamily("veltair_denied", "Requests of nobody known, or not permitted", labels=("reason",))
        for cause, count in self.denied.items():
            denied.add_metric((cause,), count)
        yield denied

    def _tenant_metrics(self, snapshot: Snapshot) -> Iterator[Metric]:
        status = snapshot.status
        waiting = GaugeMetricFamily("veltair_queue_depth", "Queries waiting for their first block", labels=("tenant",))
        running = GaugeMetricFamily("veltair_queries_running", "Queries started and not ended", labels=("tenant",))
        allocated = GaugeMetricFamily("veltair_cores_allocated", "Cores held by blocks now", labels=("tenant",))
        batches = HistogramMetricFamily("veltair_batch_queries", "Queries in a batch, by batch", labels=("tenant",))
        versions = CounterMetricFamily(
            "veltair_code_versions", "Layers run in each code version", labels=("tenant", "model", "version")
        )
        predicted = CounterMetricFamily(
            "veltair_predicted_block_seconds",
            "Blocks that ran as planned, by their profile",
            labels=("tenant", "model"),
        )
        measured = CounterMetricFamily(
            "veltair_measured_block_seconds", "What those blocks took", labels=("tenant", "model")
        )
        for name, counts in self.tenants.items():
            tenant, of_engines = status.tenants.get(name), self.engines.tenants.get(name, NO_COUNTS)
            predicted.add_metric((name, counts.model), of_engines.predicted_ns / SECOND_NS)
            measured.add_metric((name, counts.model), of_engines.measured_ns / SECOND_NS)
            waiting.add_metric((name,), tenant.waiting if tenant else 0)
            running.add_metric((name,), tenant.running if tenant else 0)
            allocated.add_metric((name,), sum(len(b.cores) for b in status.running if b.tenant == name))
            sizes = of_engines.batches
            batches.add_metric((name,), _batch_buckets(sizes), float(sum(size * n for size, n in sizes.items())))
            for version, layers in sorted(of_engines.versions.items()):
                versions.add_metric((name, counts.model, str(version)), layers)
        yield from (waiting, running, allocated, batches, versions, predicted, measured)

    def _engine_metrics(self, snapshot: Snapshot) -> Iterator[Metric]:
        status, counts = snapshot.status, self.engines.counts
        yield GaugeMetricFamily("veltair_cores", "Cores that may be handed out", value=len(snapshot.cores))
        level = GaugeMetricFamily(
            "veltair_interference_level", "Slowdown against running alone; absent while idle", labels=("source",)
        )
        if status.level is not None:
            level.add_metric((status.level_source,), status.level)
        yield level
        yield CounterMetricFamily("veltair_blocks", "Layer-blocks started", counts["blocks_started"])
        yield CounterMetricFamily("veltair_conflicts", "Blocks that got fewer cores than wanted", counts["conflicts"])
        yield CounterMetricFamily("veltair_capped_blocks", "Blocks capped at the threshold", counts["capped_blocks"])
        yield SummaryMetricFamily(
            "veltair_scheduler_seconds",
            "Time to decide, by event",
            count_value=counts["scheduler_events"],
            sum_value=counts["scheduler_ns"] / SECOND_NS,
        )
        yield SummaryMetricFamily(
            "veltair_block_gap_seconds",
            "Idle between two blocks of a query started back to back",
            count_value=counts["gaps"],
            sum_value=counts["gap_ns"] / SECOND_NS,
        )
        workers = GaugeMetricFamily("veltair_workers", "Worker processes by state", labels=("state",))
        states = Counter[str](worker.state for worker in status.workers)
        for state in ("starting", "idle", "busy", "changing"):
            workers.add_metric((state,), states[state])
        yield workers
        sandbox = GaugeMetricFamily("veltair_sandbox", "Whether this confines the workers", labels=("by",))
        sandbox.add_metric(("landlock",), status.sandbox.landlock_abi > 0)
        sandbox.add_metric(("seccomp",), status.sandbox.seccomp)
        yield sandbox
        yield CounterMetricFamily("veltair_engine_restarts", "Engines that died", snapshot.engine_restarts)
        yield GaugeMetricFamily("veltair_queries_held", "Queries that hold a slot", value=snapshot.held)
        yield GaugeMetricFamily("veltair_query_slots", "Slots for each tenant", value=snapshot.slots)
        deaths = counts["worker_deaths"]
        yield CounterMetricFamily("veltair_worker_deaths", "Workers that died and were replaced", deaths)

    def _memory_metrics(self, snapshot: Snapshot) -> Iterator[Metric]:
        labels = ("tenant", "model", "version")
        memory = GaugeMetricFamily("veltair_model_memory_bytes", "Memory of a model", labels=(*labels, "kind"))
        resident = GaugeMetricFamily("veltair_model_resident", "Whether the model is in memory", labels=labels)
        for each in snapshot.memory:
            if (counts := self.tenants.get(each.tenant)) is None:
                continue
            key = (each.tenant, counts.model, each.version)
            resident.add_metric(key, each.resident)
            for kind in KINDS:
                memory.add_metric((*key, kind), getattr(each, kind))
        yield from (memory, resident)
        returns = CounterMetricFamily("veltair_model_returns", "Models brought back to memory", labels=("tenant",))
        evictions = CounterMetricFamily("veltair_model_evictions", "Idle models that left memory", labels=("tenant",))
        moves = self.memory_moves()
        for name in self.tenants:
            returns.add_metric((name,), moves.returns.get(name, 0))
            evictions.add_metric((name,), moves.evictions.get(name, 0))
        yield from (returns, evictions)
        yield GaugeMetricFamily(
            "veltair_queries_waiting_for_memory", "Queries whose model is brought back", value=moves.waiting
        )


def _batch_buckets(sizes: Mapping[int, int]) -> list[tuple[str, float]]:
    """Cumulative, as (le in queries, count)."""
    rows = [(str(edge), float(sum(n for size, n in sizes.items() if size <= edge))) for edge in _BATCH_EDGES]
    return [*rows, ("+Inf", float(sum(sizes.values())))]
