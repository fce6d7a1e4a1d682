"""What a daemon's /metrics say that Ray's autoscaler and routers want to know."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class DaemonCounts:
    """Counts since the daemon started.

    >>> DaemonCounts({"mlp": 10}, {"mlp": 1}, {"mlp": 0.95}, core_s=2.5, resident=None).misses["mlp"]
    1
    """

    requests: Mapping[str, float]  # by tenant: those that count for its target
    misses: Mapping[str, float]  # by tenant: those that missed it
    objective: Mapping[str, float]  # by tenant: the share that is to meet it
    core_s: float  # of the workers
    resident: tuple[str, ...] | None  # tenants whose model is in memory; None where nothing is said


def read_counts(page: str) -> DaemonCounts:
    r"""The counts of a page in Prometheus' text format.

    >>> read_counts('process_cpu_seconds_total{role="worker"} 8.0\nprocess_cpu_seconds_total{role="front"} 2').core_s
    8.0
    """
    requests: dict[str, float] = defaultdict(float)
    misses: dict[str, float] = defaultdict(float)
    objective: dict[str, float] = {}
    core_s = 0.0
    resident: set[str] | None = None
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            tenant = sample.labels.get("tenant", "")
            if sample.name == "veltair_slo_requests_total":
                requests[tenant] += sample.value
            elif sample.name == "veltair_slo_misses_total":
                misses[tenant] += sample.value
            elif sample.name == "veltair_slo_objective_ratio":
                objective[tenant] = sample.value
            elif sample.name == "process_cpu_seconds_total" and sample.labels.get("role") == "worker":
                core_s += sample.value
            elif sample.name == "veltair_model_resident":
                resident = set() if resident is None else resident
                if sample.value:
                    resident.add(tenant)
    return DaemonCounts(requests, misses, objective, core_s, None if resident is None else tuple(sorted(resident)))
