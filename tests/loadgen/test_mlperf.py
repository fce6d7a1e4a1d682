from __future__ import annotations

import argparse
import asyncio
import json
import sys

import pytest
from fake_server_process import write_scenario

from veltair.commands.load import add_arguments, run
from veltair.errors import VeltairError
from veltair.loadgen import mlperf
from veltair.loadgen.scenario import LoadSettings, TenantLoad


def load(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args([str(a) for a in arguments]))


DETAIL = "\n".join(
    f':::MLLOG {{"key": "{key}", "value": {json.dumps(value)}, "time_ms": 1.5, "metadata": {{"line_no": 3}}}}'
    for key, value in {
        "result_validity": "INVALID",
        "result_query_count": 200,
        "result_overlatency_query_count": 30,
        "result_scheduled_samples_per_sec": 20.0,
        "result_completed_samples_per_sec": 19.0,
        "result_50.00_percentile_latency_ns": 1_500_000,
        "result_95.00_percentile_latency_ns": 9_000_000,
        "result_99.00_percentile_latency_ns": 12_345_678,
    }.items()
)


def test_the_detail_log_becomes_a_row():
    detail = mlperf.read_detail(f"some other line\n{DETAIL}\n")
    assert detail["result_validity"] == "INVALID"
    row = mlperf.tenant_result(detail, TenantLoad("m", 21.0, 10.0), refused=15, errors=5)
    assert (row.name, row.offered_qps, row.target_ms) == ("m", 20.0, 10.0)
    assert (row.p50_ms, row.p95_ms, row.p99_ms) == (1.5, 9.0, 12.3457)
    assert row.qos_rate == pytest.approx(0.85)
    assert row.qps == pytest.approx(19.0 * 0.9)
    assert (row.refused, row.errors) == (15, 5)


@pytest.mark.parametrize("text", ["", DETAIL.replace("result_query_count", "other")])
def test_a_log_without_a_result(text):
    with pytest.raises(VeltairError, match="holds no result"):
        mlperf.tenant_result(mlperf.read_detail(text), TenantLoad("m", 1.0, 1.0), 0, 0)


def test_a_broken_log():
    with pytest.raises(VeltairError, match="not an MLLOG line"):
        mlperf.read_detail(":::MLLOG {broken")


def test_a_missing_extra_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)  # as if not installed
    assert load(write_scenario(tmp_path, "grpc://127.0.0.1:1", [("echo", 5.0, 5.0)]), "--engine", "mlperf") == 2
    assert "pip install veltair[mlperf]" in capsys.readouterr().err


@pytest.fixture
def installed():
    pytest.importorskip("mlperf_loadgen")


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_the_real_thing(own_fake_server, capsys, tmp_path, scheme):
    tenants = [("echo", 100.0, 1_000.0), ("third", 100.0, 1_000.0)]
    path = write_scenario(tmp_path, own_fake_server.url(scheme), tenants, duration_s=1.0)
    logs = tmp_path / "new" / "logs"
    assert load(path, "--engine", "mlperf", "--tenant", "echo", "--json", "--mlperf-logs", logs) == 0
    (row,) = json.loads(capsys.readouterr().out)["tenants"]
    assert (row["name"], row["qos_rate"], row["refused"], row["errors"]) == ("echo", 1.0, 0, 0)
    assert 0 < row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= 1_000
    assert row["offered_qps"] == pytest.approx(100, rel=0.5)
    detail = mlperf.read_detail((logs / "mlperf_log_detail.txt").read_text())
    assert detail["effective_scenario"] == "Server"
    assert detail["effective_min_duration_ms"] == 1000
    assert detail["effective_schedule_rng_seed"] == 1
    assert own_fake_server.stats("echo")["queries"] > detail["result_query_count"]  # and the warm-up


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_refusals_count_as_over_latency_and_not_as_fast_answers(own_fake_server, tmp_path, capsys):
    path = write_scenario(tmp_path, own_fake_server.url("http"), [("third", 100.0, 2_000.0)], duration_s=1.0)
    assert load(path, "--engine", "mlperf", "--json") == 0
    captured = capsys.readouterr()
    (row,) = json.loads(captured.out)["tenants"]
    assert row["refused"] > 0
    assert row["qos_rate"] == pytest.approx(2 / 3, abs=0.05)
    assert row["p99_ms"] >= 2_000
    assert "MLPerf calls the result INVALID" in captured.err
    assert "503 queue full" in captured.err


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_a_server_that_never_answers_does_not_hang_mlperf(own_fake_server, tmp_path, capsys):
    path = write_scenario(
        tmp_path, own_fake_server.url("grpc"), [("later_hang", 20.0, 50.0)], duration_s=0.5, warmup_s=0.0, timeout_s=0.5
    )
    assert load(path, "--engine", "mlperf", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["tenants"]
    assert row["errors"] > 0 and row["qps"] == 0 and row["qos_rate"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("installed")
def test_what_fails_in_the_child_is_told_by_the_parent(own_fake_server, tmp_path, capsys):
    path = write_scenario(tmp_path, own_fake_server.url("http"), [("nobody", 20.0, 50.0)])
    assert load(path, "--engine", "mlperf") == 2
    assert "unknown model `nobody`" in capsys.readouterr().err


def test_a_child_that_dies_or_hangs_is_an_error(tmp_path, monkeypatch):
    job = mlperf.Job(
        LoadSettings("http://127.0.0.1:1", duration_s=0.1, warmup_s=0, timeout_s=0.1), TenantLoad("m", 100.0, 1.0), "."
    )
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(VeltairError, match="ended with status 3 and no result"):
        asyncio.run(mlperf.run(job, asyncio.Event()))

    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    monkeypatch.setattr(mlperf, "GRACE_S", 0.0)
    with pytest.raises(VeltairError, match="did not end within"):
        asyncio.run(mlperf.run(job, asyncio.Event()))


def test_stopped_is_no_result(tmp_path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    job = mlperf.Job(LoadSettings("http://127.0.0.1:1"), TenantLoad("m", 100.0, 1.0), ".")

    async def play() -> object:
        stop = asyncio.Event()
        stop.set()
        return await mlperf.run(job, stop)

    assert asyncio.run(play()) is None
