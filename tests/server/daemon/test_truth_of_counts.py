"""What clients saw, statistics and metrics say the same: by version, over a new target, another engine and a drain."""

from __future__ import annotations

import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from model_versions import altered, scaled_mlp
from resident_models import Clients, loader_of, stopped
from running_daemon import X, configuration, reload, running, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

LONG = 100_000_000  # turns of each of the layers: many seconds in all


@pytest.fixture(scope="module", params=[1, 0], ids=["native", "python"])
def clients(
    artifacts: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[tuple[Clients, Path]]:
    """Of a daemon with mlp in two versions, spin and crash; and its folder."""
    folder = tmp_path_factory.mktemp("truth")
    models = folder / "models"
    for version in (1, 2):
        scaled_mlp(artifacts, models / "mlp" / str(version), version)
    (models / "mlp" / "tenant.toml").write_text('versions = "all"\n')
    for name in ("spin", "crash"):
        shutil.copytree(artifacts / name, models / name)
        (models / name / "tenant.toml").write_text("qos_ms = 60000\n")
    text = configuration(
        folder, repository=str(models), model_control=True, fronts=request.param, log_format="json", policy="veltair"
    )
    with running(folder, text) as daemon:
        made = Clients(daemon)
        yield made, folder
        made.close()


def ask(clients: Clients, version: str = "") -> None:
    for module, client in ((triton_http, clients.http), (triton_grpc, clients.rpc)):
        client.infer("mlp", [tensor(module, "x", X, "FP32")], model_version=version)


def counters(clients: Clients) -> dict[str, float]:
    """All of the daemon that only grow; those of processes go with them."""
    with urllib.request.urlopen(f"http://{clients.daemon.http}/metrics") as page:
        lines = [line for line in page.read().decode().splitlines() if line.startswith("veltair_")]
    found = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}
    return {
        name: value for name, value in found.items() if name.partition("{")[0].endswith(("_total", "_count", "_sum"))
    }


def gone_back(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[float, float | None]]:
    return {name: (value, after.get(name)) for name, value in before.items() if after.get(name, -1) < value}


def count(clients: Clients, outcome: str, tenant: str) -> float:
    return clients.daemon.metric("veltair_requests_total", tenant=tenant, outcome=outcome)


def test_statistics_are_those_of_each_version(clients: tuple[Clients, Path]) -> None:
    both, _ = clients
    for version, times in (("1", 2), ("2", 1), ("", 1)):
        for _ in range(times):
            ask(both, version)
    rows = {row["version"]: row for row in both.http.get_inference_statistics("mlp")["model_stats"]}
    assert {version: row["inference_stats"]["success"]["count"] for version, row in rows.items()} == {"1": 4, "2": 4}

    def executed() -> list[tuple[str, int, int]]:
        stats = both.rpc.get_inference_statistics("mlp").model_stats
        return [(row.version, row.inference_count, row.inference_stats.success.count) for row in stats]

    until("the executions", lambda: executed() == [("1", 4 * len(X), 4), ("2", 4 * len(X), 4)])
    (alone,) = both.http.get_inference_statistics("mlp", "1")["model_stats"]
    assert alone["version"] == "1" and alone["inference_stats"]["success"]["count"] == 4
    every = both.http.get_inference_statistics()["model_stats"]
    assert {(row["name"], row["version"]) for row in every} == {
        ("mlp", "1"),
        ("mlp", "2"),
        ("spin", "1"),
        ("crash", "1"),
    }
    assert both.http.get_model_config("mlp")["version_policy"] == {"specific": {"versions": [1, 2]}}
    assert [*both.rpc.get_model_config("mlp").config.version_policy.specific.versions] == [1, 2]


def test_settings_take_effect_whoever_was_loaded_before(clients: tuple[Clients, Path]) -> None:
    both, folder = clients
    ask(both)
    before = counters(both)
    (folder / "models" / "mlp" / "tenant.toml").write_text('versions = "all"\nqos_ms = 77\n')
    (folder / "models" / "spin" / "tenant.toml").write_text("qos_ms = 50000\n")
    both.http.load_model("mlp")  # reads the settings of spin too
    assert both.daemon.metric("veltair_qos_target_seconds", tenant="mlp") == 0.077
    assert reload(both.daemon) == (200, {"done": ["loaded spin 1"]})
    assert both.daemon.metric("veltair_qos_target_seconds", tenant="spin") == 50.0
    assert reload(both.daemon) == (200, {"done": []})
    ask(both)
    after = counters(both)
    assert not gone_back(before, after)
    answered = 'veltair_request_duration_seconds_count{model="mlp",tenant="mlp"}'
    assert after[answered] == before[answered] + 2


def test_a_client_that_leaves_at_its_deadline_has_missed_it(clients: tuple[Clients, Path]) -> None:
    both, _ = clients
    missed, left = count(both, "deadline", "spin"), count(both, "cancelled", "spin")
    for _ in range(2):  # the second by the first one's plan
        with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
            both.rpc.infer("spin", spin(triton_grpc, LONG, 1), client_timeout=0.3)
    until("both are counted", lambda: count(both, "deadline", "spin") == missed + 2)
    leaving = both.rpc.async_infer(
        "spin", spin(triton_grpc, LONG, 1), lambda result, error: None, client_timeout=WAIT_S
    )
    until("it runs", lambda: both.daemon.metric("veltair_queries_running", tenant="spin") == 1)
    leaving.cancel()
    until("it is counted", lambda: count(both, "cancelled", "spin") == left + 1)
    assert count(both, "deadline", "spin") == missed + 2


def test_no_counter_goes_back_when_processes_die(clients: tuple[Clients, Path]) -> None:
    both, folder = clients
    with pytest.raises(InferenceServerException, match="SIGSEGV"):
        both.rpc.infer("crash", spin(triton_grpc, 1000, 1))
    until("its death is counted", lambda: both.daemon.metric("veltair_worker_deaths_total") == 1)
    before = counters(both)
    os.kill(engine_of(both), signal.SIGKILL)
    until("another engine", lambda: both.daemon.metric("veltair_events_total", kind="engine_restarted") == 1)
    ask(both)
    after = counters(both)
    assert not gone_back(before, after)
    assert after["veltair_worker_deaths_total"] == 1
    assert all(json.loads(line) for line in (folder / "log").read_text().split("\n")[:-1])


def engine_of(clients: Clients) -> int:
    with urllib.request.urlopen(f"http://{clients.daemon.http}/metrics") as page:
        line = next(line for line in page.read().decode().splitlines() if 'role="engine"' in line)
    return int(line.partition('pid="')[2].partition('"')[0])


def test_a_drain_refuses_changes_as_such(artifacts: Path, tmp_path: Path) -> None:
    scaled_mlp(artifacts, tmp_path / "models" / "mlp" / "1", 1)
    text = configuration(tmp_path, repository=str(tmp_path / "models"), model_control=True, fronts=0)
    with running(tmp_path, text) as daemon, ThreadPoolExecutor(1) as pool:
        altered(artifacts / "mlp", tmp_path / "models" / "mlp" / "2")
        with stopped(loader_of(daemon.process.pid)):
            load = pool.submit(status, f"http://{daemon.http}/v2/repository/models/mlp/load")
            until("it loads", lambda: "LOADING" in status(f"http://{daemon.http}/v2/repository/index")[1])
            daemon.process.send_signal(signal.SIGTERM)
            code, said = load.result()
        assert code == 503 and "shutting down" in said, said
        assert daemon.process.wait(WAIT_S) == 0
    assert "is not loaded" not in (tmp_path / "log").read_text()


def status(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, b"") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
