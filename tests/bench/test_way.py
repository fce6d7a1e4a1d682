"""The way of a query: what is left to measure, roles of processes, medians and what is derived from them."""

from __future__ import annotations

import io
import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from example_manifest import make_manifest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from bench import section, tables
from bench.serving.way import lone_client, open_load, summary
from bench.serving.way.plan import DEMO_MIX, ROWS, SUBJECTS, Measurement, measurements
from bench.serving.way.server_cpu import cpu_ns, role
from veltair.loadgen.client import Outcome
from veltair.loadgen.open_loop import ArrivalSchedule, Trace
from veltair.loadgen.tenant_streams import TenantStream
from veltair.profiles.artifact.manifest import Port
from veltair.server.front.metrics import Metrics
from veltair.server.ipc.stages import STAGES
from veltair.types import QoSTarget

STACKS = ["veltair", "Triton with ONNX Runtime"]
MODELS = (*SUBJECTS, DEMO_MIX)


def test_each_round_takes_every_stack_in_turn_and_each_stack_starts_once_a_model() -> None:
    found = measurements(2, STACKS, ROWS, MODELS, ())
    assert [each.round for each in found] == sorted(each.round for each in found)
    starts = list(dict.fromkeys(each.served for each in found if each.stack))
    served = [each.served for each in found if each.stack]
    assert [a for a, b in zip(served, [None, *served], strict=False) if a != b] == starts
    assert starts == [(number, model, stack) for number in (1, 2) for model in MODELS for stack in STACKS]
    assert len(set(found)) == len(found)


def test_rows_that_need_an_idle_server_come_before_the_loads() -> None:
    rows = [each.row for each in measurements(1, ["veltair"], ROWS, ["dlrm"], ())]
    assert list(dict.fromkeys(rows)) == ["raw", "lone", "shared", "cpu", "peak"]


@given(st.sets(st.sampled_from(measurements(2, STACKS, ROWS, MODELS, ()))))
def test_a_run_continues_with_what_is_left(done: set[Measurement]) -> None:
    everything = measurements(2, STACKS, ROWS, MODELS, ())
    assert measurements(2, STACKS, ROWS, MODELS, done) == [each for each in everything if each not in done]


def test_rows_and_models_are_chosen() -> None:
    found = measurements(1, STACKS, ["lone"], ["resnet50"], ())
    assert {(each.row, each.model) for each in found} == {("lone", "resnet50")}


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python -m veltair.cli serve /tmp/serve.toml --json", "front"),
        ("/x/python -P -m veltair.server.engine.engine 8750 17 14", "engine"),
        ("/x/python -P -m veltair.server.worker.worker 8754 5 6 14", "workers"),
        ("/x/pytriton/tritonserver/bin/tritonserver --model-repository /tmp/models", "front"),
        ("/tmp/b/python/triton_python_backend_stub /tmp/models/dlrm/1/model.py", "stubs"),
        ("python -m bench.serving.triton serve.toml models", "launcher"),
        ("sleep 1", "other"),
        ("", "other"),
    ],
)
def test_a_process_has_its_role_from_its_command_line(command: str, expected: str) -> None:
    assert role(command.split()) == expected


def test_cpu_time_is_that_of_the_process() -> None:
    before, own = sum(cpu_ns(os.getpid()).values()), time.process_time_ns()
    while time.process_time_ns() < own + 20_000_000:
        pass
    assert sum(cpu_ns(os.getpid()).values()) - before >= 20_000_000


def test_inputs_are_within_the_bounds_of_ids() -> None:
    ports = (Port("ids", "int64", (-1, 500), low=3, high=5), Port("x", "float32", (1, 7)))
    found = lone_client.draw_inputs(make_manifest(inputs=ports))
    assert set(found["ids"].ravel().tolist()) == {3, 4, 5}
    assert (found["ids"].shape, found["ids"].dtype) == ((1, 500), np.int64)
    assert (found["x"].shape, found["x"].dtype) == ((1, 7), np.float32)


def test_stages_are_read_from_the_metrics_of_the_tenant() -> None:
    metrics = Metrics({name: (name, QoSTarget(10**7)) for name in ("dlrm", "other")})
    metrics.tenants["dlrm"].count_answer((1_000_000, 20_000, 0, 3_000_000, 0, 0, 500_000), batch=1)
    found = lone_client.stage_sums_ms(metrics.page(None).decode(), "dlrm")
    assert found == pytest.approx(dict(zip([s.name for s in STAGES], (1, 0.02, 0, 3, 0, 0, 0.5), strict=True)))
    assert lone_client.stage_sums_ms("", "dlrm") == {}


def test_latencies_are_those_of_answered_queries_from_their_scheduled_arrival() -> None:
    streams = [TenantStream(name, 1.0, 10**9, 0.95, (b"",)) for name in ("a", "idle", "b")]
    arrival_ns = np.array([0, 1_000_000, 2_000_000, 3_000_000])
    schedule = ArrivalSchedule(arrival_ns, np.array([0, 2, 0, 0]), np.zeros(4, np.int64), (0, 10**9))
    done_ns = arrival_ns + np.array([2_000_000, 7_000_000, 4_000_000, 99_000_000])
    outcome = np.array([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.REFUSED], np.int8)
    trace = Trace(schedule, arrival_ns, done_ns, outcome, (0, 10**9), Counter(), cpu_ns=0)
    found = open_load.latencies(trace, streams)
    assert found["a"] == {"queries": 3, "answered": 2, "mean_ms": 3.0, "p50_ms": 3.0, "p95_ms": 3.9}
    assert found["b"] == {"queries": 1, "answered": 1, "mean_ms": 7.0, "p50_ms": 7.0, "p95_ms": 7.0}
    assert "idle" not in found


def test_nothing_answered_is_no_measurement() -> None:
    streams = [TenantStream("a", 1.0, 10**9, 0.95, (b"",))]
    one = np.array([0])
    schedule = ArrivalSchedule(one, one, one, (0, 10**9))
    failed, reasons = np.array([Outcome.ERROR], np.int8), Counter({(0, "gone"): 1})
    trace = Trace(schedule, one, one + 5, failed, (0, 10**9), reasons, cpu_ns=0)
    with pytest.raises(SystemExit, match="gone"):
        open_load.latencies(trace, streams)


def entry(number: int, model: str, stack: str, row: str, protocol: str, **values: Any) -> dict[str, Any]:
    return Measurement(number, model, stack, row, protocol)._asdict() | values


def raw(number: int, model: str, one_core_ms: float, all_cores_ms: float) -> dict[str, Any]:
    engines = [
        {"engine": engine, "precision": precision, "threads": threads, "median_ms": ms * factor}
        for engine, precision, factor in (("veltair", "bf16", 1), ("openvino", "fp32", 9), ("openvino", "default", 2))
        for threads, ms in ((1, one_core_ms), (2, all_cores_ms))
    ]
    return entry(number, model, "", "raw", "", engines=engines)


def lines_of(entries: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """Cells by the line's title."""
    groups = summary.groups({"measurements": entries, "cores": 2})
    return {line[0]: line[1:] for group in groups for line in group.lines}


def test_cells_are_medians_of_both_protocols() -> None:
    seen = [("grpc", 1.0), ("grpc", 5.0), ("grpc", 2.0), ("http", 0.5)]
    lone = [
        entry(n, "dlrm", "veltair", "lone", p, p50_ms=ms, p95_ms=2 * ms, mean_ms=ms, executed_ms=0.25)
        for n, (p, ms) in enumerate(seen)
    ]
    assert lines_of(lone) == {
        "lone client, p50 ms": ["2.00 / 0.50"],
        "lone client, p95 ms": ["4.00 / 1.00"],
        "lone client, mean less what the server counts as the model, ms": ["1.75 / 0.25"],
    }


def test_the_models_own_time_is_that_of_the_stacks_engine_in_the_same_round() -> None:
    times = {"p95_ms": 9.0, "mean_ms": 8.0, "executed_ms": 1.0}
    entries = [
        raw(1, "resnet50", 8.0, 4.0),
        raw(2, "resnet50", 20.0, 10.0),
        entry(1, "resnet50", "veltair", "lone", "grpc", p50_ms=5.0, **times),
        entry(2, "resnet50", "veltair", "lone", "grpc", p50_ms=13.0, **times),
        entry(3, "resnet50", "veltair", "lone", "grpc", p50_ms=99.0, **times),  # without times of the engine
        entry(1, "resnet50", "Triton with OpenVINO", "lone", "grpc", p50_ms=8.5, **times),
    ]
    assert lines_of(entries)["lone client, p50 less the model's time on all cores, ms"] == ["2.00", "0.50"]


def test_served_over_raw_counts_the_model_on_one_core_and_the_client() -> None:
    at_peak = {"server_cpu_ms": {"front": 2.0, "workers": 50.0}, "client_cpu_ms": 1.0}
    entries = [
        raw(1, "resnet50", 49.0, 25.0),
        entry(1, "resnet50", "veltair", "peak", "grpc", peak_qps=36.0, at_peak=at_peak),
        entry(1, "resnet50", "Triton with OpenVINO", "peak", "grpc", peak_qps=0.0, at_peak=None),
    ]
    found = lines_of(entries)
    assert found["served over raw"] == ["0.90", ""]
    assert found["peak QPS with 99% within 50 ms"] == ["36", "0"]
    assert found["CPU of the load generator a query at the peak, ms"] == ["1.00", ""]


def test_the_way_of_an_image_leaves_out_the_model() -> None:
    used = {"front": 1.0, "engine": 0.25, "workers": 30.0, "launcher": 0.5}
    entries = [entry(1, "mobilenet_v2", "veltair", "cpu", "grpc", server_cpu_ms=used)]
    assert lines_of(entries) == {"CPU of front and engine a query at 15 QPS, ms": ["1.25"]}


def test_the_mix_is_compared_with_the_models_times_on_all_cores() -> None:
    tenants = {name: {"answered": 1, "mean_ms": 6.0} for name in SUBJECTS}
    mix = entry(1, DEMO_MIX, "veltair", "mix", "grpc", peak_qps=50.0, at_share={"tenants": tenants})
    own = [raw(1, name, 9.0, 3.0) for name in SUBJECTS]
    title = "mean latency at 20% of it over the models' own times"
    assert lines_of([*own, mix])[title] == ["2.00"]
    assert title not in lines_of([*own[1:], mix])  # a model's own time is missing


def test_the_table_is_the_same_for_the_terminal_and_the_page() -> None:
    found = {
        "cores": 2,
        "measurements": [
            entry(1, "dlrm", "veltair", "lone", "http", p50_ms=1.0, p95_ms=2.0, mean_ms=1.25, executed_ms=0.25)
        ],
    }
    assert summary.markdown(found).splitlines() == [
        "| gRPC / HTTP | veltair |",
        "| --- | --- |",
        "| **DLRM, one row (7 KB)** |  |",
        "| lone client, p50 ms |  / 1.00 |",
        "| lone client, p95 ms |  / 2.00 |",
        "| lone client, mean less what the server counts as the model, ms |  / 1.00 |",
    ]
    text = io.StringIO()
    summary.show(found, Console(file=text, width=100))
    assert "lone client, p95 ms" in text.getvalue()


def test_the_page_has_the_results(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in section.RESULTS.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(section, "RESULTS", tmp_path)
    (tmp_path / "way.json").unlink()
    lone = entry(1, "dlrm", "veltair", "lone", "grpc", p50_ms=1.25, p95_ms=2.0, mean_ms=1.5, executed_ms=0.1)
    environment = {"cpu": "EPYC", "cores": 2, "kernel": "6.18", "python": "3.11"}
    found = {"environment": environment, "cores": 2, "measurements": [lone]}
    (tmp_path / "way.json").write_text(json.dumps(found), "utf-8")
    assert "## The way of a query, beside Triton" in tables.page()
    assert "| lone client, p50 ms | 1.25 |" in tables.page()


def test_medians_are_by_stack() -> None:
    entries = [
        entry(number, "dlrm", stack, "cpu", protocol, server_cpu_ms={"front": ms})
        for number, stack, protocol, ms in (
            (1, "veltair", "grpc", 1.0),
            (2, "veltair", "grpc", 9.0),
            (3, "veltair", "grpc", 2.0),
            (1, "veltair", "http", 99.0),
            (1, "Triton", "grpc", 4.0),
        )
    ]
    found = summary.medians(
        {"measurements": entries}, "dlrm", "cpu", "grpc", lambda each: each["server_cpu_ms"]["front"]
    )
    assert found == {"veltair": 2.0, "Triton": 4.0}
