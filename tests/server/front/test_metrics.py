"""The page that Prometheus reads."""

import os
import re

from in_process_front import ENOUGH_MS, MS, Front, request, run
from prometheus_client.parser import text_string_to_metric_families

from veltair.errors import OverloadedError, RefusalReason
from veltair.server.ipc.stages import STAGES


def samples(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_metrics() -> None:
    async def test(front: Front) -> None:
        await front.good()
        front.engine.failure = OverloadedError(RefusalReason.SLOTS)
        await front.http.post("/v2/models/sums/infer", json=request())
        await front.http.post("/v2/models/made-up-by-a-client/infer", json=request())
        await front.http.post("/v2/models/sums/infer", content=b"{")
        page = (await front.http.get("/metrics")).text
        assert "made-up-by-a-client" not in page
        assert all(name.startswith(("veltair_", "process_")) for name in re.findall(r"^(\w+)[{ ]", page, re.MULTILINE))
        found = samples(page)
        sums = {("tenant", "sums"), ("model", "sums")}

        def value(name: str, *labels: tuple[str, str]) -> float:
            return found[name, frozenset(labels)]

        assert value("veltair_requests_total", *sums, ("outcome", "ok")) == 1
        assert value("veltair_requests_total", *sums, ("outcome", "overloaded")) == 1
        assert value("veltair_unknown_model_requests_total") == 1
        assert value("veltair_malformed_requests_total") == 1
        assert value("veltair_request_duration_seconds_count", *sums) == 1
        stages = {s.name: round(1e9 * value("veltair_stage_seconds_total", *sums, ("stage", s.name))) for s in STAGES}
        assert stages["handoff"] == stages["wait"] == MS
        assert (stages["execute"], stages["gap"], stages["report"]) == (2 * MS, 0, 0)
        assert sum(stages.values()) == round(1e9 * value("veltair_request_duration_seconds_sum", *sums)) > 0
        queued = stages["read"] + stages["handoff"] + stages["wait"]
        assert round(1e9 * value("veltair_queue_wait_seconds_sum", *sums)) == queued
        assert value("veltair_code_versions_total", *sums, ("version", "2")) == 2
        assert value("veltair_interference_level", ("source", "observed")) == 1.25
        assert value("veltair_queue_depth", ("tenant", "sums")) == 5
        assert value("veltair_cores_allocated", ("tenant", "sums")) == 2
        edges = {"1": 7, "2": 7, "4": 9, "128": 9, "+Inf": 10}
        assert {le: value("veltair_batch_queries_bucket", ("tenant", "sums"), ("le", le)) for le in edges} == edges
        assert value("veltair_batch_queries_sum", ("tenant", "sums")) == 213
        assert value("veltair_batch_queries_count", ("tenant", "two")) == 0
        assert value("veltair_cores") == 2
        assert value("veltair_conflicts_total") == 4
        assert value("veltair_scheduler_seconds_sum") == 9e-6
        assert value("veltair_workers", ("state", "busy")) == 1
        assert value("veltair_sandbox", ("by", "landlock")) == 1
        assert value("veltair_sandbox", ("by", "seccomp")) == 0
        this_process = {("role", "front"), ("pid", str(os.getpid()))}
        assert value("process_resident_memory_bytes", *this_process) > 1 << 20
        assert value("process_cpu_seconds_total", *this_process) > 0
        assert value("process_threads", *this_process) >= 1
        assert value("process_open_fds", *this_process) >= 3
        assert value("veltair_build_info", ("version", "0"), ("policy", "fcfs")) == 1
        assert value("veltair_failures_total", *sums, ("reason", "kernel")) == 0
        assert value("veltair_slo_objective_ratio", *sums) == 0.95
        assert value("veltair_slo_requests_total", *sums) == 2
        assert value("veltair_slo_misses_total", *sums, ("cause", "overloaded")) == 1
        assert round(value("veltair_slo_burn_rate", *sums, ("window", "5m"))) == 10
        assert value("veltair_early_refusals_total", ("reason", "memory")) == 0
        assert value("veltair_events_total", ("kind", "worker_died")) == 0
        front_ns = round(1e9 * value("veltair_front_seconds_sum", *sums))
        assert front_ns == stages["read"] + stages["handoff"] + stages["report"] + stages["answer"]
        assert value("veltair_measured_block_seconds_total", *sums) == 0.003
        front.engine.ready = False
        page = (await front.http.get("/metrics")).text
        assert "veltair_requests_total" in page and "veltair_code_versions" not in page

    run(test, target_ms=ENOUGH_MS)


def test_the_qos_rate_read_from_the_histogram_is_exact() -> None:
    front = Front()
    counts = front.metrics.tenants["sums"]
    for duration_ns in (7 * MS - 1, 7 * MS, 7 * MS + 1, 90 * MS):
        counts.count_answer((0, 0, 0, 0, 0, 0, duration_ns), batch=1)
    found = samples(front.metrics.page(None).decode())
    key = {("tenant", "sums"), ("model", "sums")}
    assert found["veltair_request_duration_seconds_bucket", frozenset({*key, ("le", "0.007")})] == 2
    assert found["veltair_qos_met_total", frozenset(key)] == 2
    assert found["veltair_request_duration_seconds_bucket", frozenset({*key, ("le", "+Inf")})] == 4
