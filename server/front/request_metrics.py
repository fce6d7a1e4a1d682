"""What `/metrics` says of requests and connections: counts, times and reasons."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from veltair.errors import FailureReason, RefusalReason
from veltair.server.front.monitor.hour_history import BURN_SPANS_S, HourHistory
from veltair.server.front.recent_window import SECOND_NS
from veltair.server.front.request_counts import OUTCOMES, RequestCounts
from veltair.server.ipc.stages import STAGES
from veltair.server.wire.io_threads import ConnectionCounts

QUANTILE_SPAN_NS = 60 * SECOND_NS


def tenant_request_metrics(tenants: Mapping[str, RequestCounts]) -> Iterator[Metric]:
    """Metrics of each tenant's requests, with the time that they took."""
    labels = ("tenant", "model")
    duration = HistogramMetricFamily(
        "veltair_request_duration_seconds", "Arrival to answer, of answered requests", labels=labels
    )
    queue = HistogramMetricFamily("veltair_queue_wait_seconds", "Arrival to the first block", labels=labels)
    execution = HistogramMetricFamily("veltair_execution_seconds", "Time in blocks", labels=labels)
    front = HistogramMetricFamily(
        "veltair_front_seconds", "Time of answered requests that neither waited for cores nor ran", labels=labels
    )
    stages = CounterMetricFamily(
        "veltair_stage_seconds", "Stages of answered requests, summed", labels=(*labels, "stage")
    )
    outcomes = CounterMetricFamily("veltair_requests", "Requests by how they ended", labels=(*labels, "outcome"))
    refusals = CounterMetricFamily(
        "veltair_refusals", "Requests refused or given up, by reason", labels=(*labels, "reason")
    )
    failures = CounterMetricFamily("veltair_failures", "Requests that failed, by reason", labels=(*labels, "reason"))
    met = CounterMetricFamily("veltair_qos_met", "Answered within the target", labels=labels)
    target = GaugeMetricFamily("veltair_qos_target_seconds", "The latency target", labels=labels)
    inferences = CounterMetricFamily("veltair_inferences", "Batch elements answered", labels=labels)
    latency = Metric("veltair_latency_seconds", "Quantiles of the last 60 s", "summary")  # gauges have no `quantile`
    now_ns = time.monotonic_ns()
    for name, counts in tenants.items():
        key = (name, counts.model)
        histograms = (
            (duration, counts.duration),
            (queue, counts.queue),
            (execution, counts.execution),
            (front, counts.front),
        )
        for family, histogram in histograms:
            family.add_metric(key, histogram.buckets(), histogram.sum_ns / SECOND_NS)
        for stage, taken_ns in zip(STAGES, counts.stage_ns, strict=True):
            stages.add_metric((*key, stage.name), taken_ns / SECOND_NS)
        for outcome in OUTCOMES:
            outcomes.add_metric((*key, outcome), counts.outcomes[outcome])
        for reason in RefusalReason:
            refusals.add_metric((*key, reason), counts.refusals[reason])
        for failure in FailureReason:
            failures.add_metric((*key, failure), counts.failures[failure])
        met.add_metric(key, counts.qos_met)
        target.add_metric(key, counts.target_ns / SECOND_NS)
        inferences.add_metric(key, counts.inferences)
        recent = counts.window.stats(now_ns - QUANTILE_SPAN_NS, now_ns + 1)
        for quantile, ms in (("0.5", recent.p50_ms), ("0.95", recent.p95_ms), ("0.99", recent.p99_ms)):
            if ms is not None:
                of = {"tenant": name, "model": counts.model, "quantile": quantile}
                latency.add_sample("veltair_latency_seconds", of, ms / 1e3)
    yield from (duration, queue, execution, front, stages, outcomes, refusals, failures)
    yield from (met, target, inferences, latency)


def slo_metrics(tenants: Mapping[str, RequestCounts], hour: HourHistory | None) -> Iterator[Metric]:
    """The share of requests that is to be in time, and what was not. A burn rate over any span is
    rate(misses) / rate(requests) / (1 - objective); those of two spans are worked out here.
    """
    labels = ("tenant", "model")
    objective = GaugeMetricFamily(
        "veltair_slo_objective_ratio", "Share of the requests that is to be answered within the target", labels=labels
    )
    requests = CounterMetricFamily("veltair_slo_requests", "Requests that count for the target", labels=labels)
    misses = CounterMetricFamily("veltair_slo_misses", "Those that missed it, by cause", labels=(*labels, "cause"))
    burn = GaugeMetricFamily(
        "veltair_slo_burn_rate", "Share of misses over the share that is allowed", labels=(*labels, "window")
    )
    for name, counts in tenants.items():
        key = (name, counts.model)
        objective.add_metric(key, counts.window.percentile)
        requests.add_metric(key, counts.slo_totals()[0])
        for cause, missed in counts.slo_misses().items():
            misses.add_metric((*key, cause), missed)
        for span in BURN_SPANS_S:
            if hour is not None and (rate := hour.burn(name, span)) is not None:
                burn.add_metric((*key, span), rate)
    yield from (objective, requests, misses, burn)


def connection_metrics(counts: ConnectionCounts) -> Iterator[Metric]:
    yield GaugeMetricFamily("veltair_connections", "Connections of clients", value=counts.open)
    yield GaugeMetricFamily(
        "veltair_connection_memory_bytes", "Bytes of requests and answers on their way", value=counts.held_bytes
    )
    yield CounterMetricFamily("veltair_connections_refused", "Closed at once: there were too many", counts.refused)
    yield CounterMetricFamily("veltair_connections_expired", "Cut off: they were too slow", counts.expired)
