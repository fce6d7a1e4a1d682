"""Models that come and go in a daemon that serves: by stock clients, by SIGHUP and by `/admin/reload`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import mlp_outputs
from grpc_health.v1 import health_pb2, health_pb2_grpc
from model_versions import BROKEN, LAYERS, broken, scaled_mlp
from running_daemon import Daemon, X, configuration, reload, running, tensor, until
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

OPTIONS = {"model_control": True, "queue_slots": 64}


@pytest.fixture
def repository(artifacts: Path, tmp_path: Path) -> Path:
    """mlp in version 1, and spin without versions."""
    folder = tmp_path / "models"
    shutil.copytree(artifacts / "mlp", folder / "mlp" / "1")
    shutil.copytree(artifacts / "spin", folder / "spin")
    return folder


LOAD_S = 180.0  # for a load that costs workers, which start again


@contextmanager
def serving(tmp_path: Path, repository: Path, **options: Any) -> Iterator[tuple[Daemon, Any, Any]]:
    text = configuration(tmp_path, repository=str(repository), **(OPTIONS | options))
    with running(tmp_path, text) as daemon:
        http = triton_http.InferenceServerClient(daemon.http, network_timeout=LOAD_S)
        rpc = triton_grpc.InferenceServerClient(daemon.grpc)
        try:
            yield daemon, http, rpc
        finally:
            http.close()
            rpc.close()


def scale(module: Any, client: Any, version: str = "", model: str = "mlp") -> tuple[float, str]:
    """How many times the first version's answer this is, and the version that it names."""
    result = client.infer(model, [tensor(module, "x", X, "FP32")], model_version=version)
    response = result.get_response()
    named = response["model_version"] if isinstance(response, dict) else response.model_version
    return round(float(np.sum(result.as_numpy("y")) / np.sum(mlp_outputs(X))), 3), named


def both(http: Any, rpc: Any, version: str = "", model: str = "mlp") -> set[tuple[float, str]]:
    """What both protocols answer, each three times: the first, and those that follow its plan."""
    pairs = [(triton_http, http), (triton_grpc, rpc)] * 3
    return {scale(module, client, version, model) for module, client in pairs}


def states(http: Any) -> dict[tuple[str, str], str]:
    return {(row["name"], row["version"]): row["state"] for row in http.get_model_repository_index()}


@pytest.mark.parametrize("fronts", [1, 0], ids=["native", "python"])
def test_versions_come_and_go(artifacts: Path, repository: Path, tmp_path: Path, fronts: int) -> None:
    with serving(tmp_path, repository, fronts=fronts) as (daemon, http, rpc):
        assert both(http, rpc) == {(1.0, "1")}
        scaled_mlp(artifacts, repository / "mlp" / "2", 2)
        assert both(http, rpc) == {(1.0, "1")}  # nobody has asked for it
        rpc.load_model("mlp")
        assert both(http, rpc) == {(2.0**LAYERS, "2")}
        assert states(http) == {("mlp", "1"): "UNAVAILABLE", ("mlp", "2"): "READY", ("spin", "1"): "READY"}
        with pytest.raises(InferenceServerException, match="no version '1'; it has 2"):
            scale(triton_grpc, rpc, "1")
        (repository / "mlp" / "tenant.toml").write_text('versions = "all"\n')
        http.load_model("mlp")
        assert both(http, rpc, "1") == {(1.0, "1")}
        assert both(http, rpc) == both(http, rpc, "2") == {(2.0**LAYERS, "2")}
        assert http.get_model_metadata("mlp")["versions"] == ["1", "2"]
        shutil.rmtree(repository / "mlp" / "2")
        scaled_mlp(artifacts, repository / "mlp" / "2", 3)  # other content under the same number
        assert both(http, rpc) == {(2.0**LAYERS, "2")}
        rpc.load_model("mlp")
        assert both(http, rpc) == {(3.0**LAYERS, "2")}
        http.unload_model("mlp")
        for module, client in ((triton_http, http), (triton_grpc, rpc)):
            with pytest.raises(InferenceServerException, match="unknown model 'mlp'"):
                scale(module, client)
        assert not http.is_model_ready("mlp")
        assert http.is_server_ready()
        assert set(states(http).values()) == {"UNAVAILABLE", "READY"}
        http.load_model("mlp")
        assert both(http, rpc) == {(3.0**LAYERS, "2")}
        assert daemon.metric("veltair_worker_deaths_total") == 0
        assert daemon.metric("veltair_requests_total", tenant="mlp", outcome="ok") >= 40


@pytest.fixture(scope="module")
def enduring(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any, Any]]:
    """The folder of mlp's versions, and clients of a daemon that meets all broken ones, one after the other."""
    folder = tmp_path_factory.mktemp("enduring")
    shutil.copytree(artifacts / "mlp", folder / "models" / "mlp" / "1")
    with serving(folder, folder / "models") as (_, http, rpc):
        yield folder / "models" / "mlp", http, rpc


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_version_leaves_the_old_one_serving(
    artifacts: Path, enduring: tuple[Path, Any, Any], how: str
) -> None:
    folder, http, rpc = enduring
    last = max(int(path.name) for path in folder.iterdir())
    old, new, scaled = str(last), str(last + 1), folder / str(last + 1)
    before = {(float(last) ** LAYERS, old)}
    assert both(http, rpc) == before
    broken(artifacts, scaled, how)
    for client in (http, rpc):
        with pytest.raises(InferenceServerException, match="mlp is not loaded") as caught:
            client.load_model("mlp")
        assert str(folder.parents[1]) not in str(caught.value)
    assert both(http, rpc) == before
    rows = {row["version"]: row for row in http.get_model_repository_index() if row["name"] == "mlp"}
    assert (rows[old]["state"], rows[new]["state"]) == ("READY", "UNAVAILABLE")
    assert rows[new]["reason"] and str(folder.parents[1]) not in rows[new]["reason"]
    shutil.rmtree(scaled)
    scaled_mlp(artifacts, scaled, last + 1)
    http.load_model("mlp")
    assert both(http, rpc) == {(float(last + 1) ** LAYERS, new)}


def test_no_query_is_lost_over_many_versions(artifacts: Path, repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path, repository) as (daemon, http, rpc):
        seen: set[float] = set()
        failures: list[Exception] = []
        stop = threading.Event()

        def ask(module: Any, address: str) -> None:
            client = module.InferenceServerClient(address)
            while not stop.is_set():
                try:
                    seen.add(scale(module, client)[0])
                except Exception as error:
                    failures.append(error)
                    break
            client.close()

        where = ((triton_http, daemon.http), (triton_grpc, daemon.grpc)) * 2
        threads = [threading.Thread(target=ask, args=each) for each in where]
        for thread in threads:
            thread.start()
        try:
            for version in range(2, 7):  # the suite of faults tries a thousand loads
                scaled_mlp(artifacts, repository / "mlp" / str(version), version)
                (http if version % 2 else rpc).load_model("mlp")
                until("an answer of it", lambda expected=float(version**LAYERS): expected in seen or bool(failures))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not failures
        assert seen == {float(version**LAYERS) for version in range(1, 7)}


def test_clients_change_nothing_unless_they_may(repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path, repository, model_control=False) as (daemon, http, rpc):
        for client in (http, rpc):
            for change in (client.load_model, client.unload_model):
                with pytest.raises(InferenceServerException, match=r"control is off \(server.model_control\)"):
                    change("mlp")
        assert reload(daemon)[0] == 501
        assert states(http) == {("mlp", "1"): "READY", ("spin", "1"): "READY"}


def test_what_cannot_be_asked_for(repository: Path, tmp_path: Path) -> None:
    with serving(tmp_path, repository) as (_, http, rpc):
        for client in (http, rpc):
            for change in (client.load_model, client.unload_model):
                for name in ("none", "../models/mlp", "a" * 300):
                    with pytest.raises(InferenceServerException):
                        change(name)
            for sent in ({}, *({"files": {"file:1/model.onnx": b"0" * size}} for size in (1, 1 << 20))):
                with pytest.raises(InferenceServerException, match="models come from their folders alone"):
                    client.load_model("mlp", config="{}", **sent)
        assert both(http, rpc) == {(1.0, "1")}
        http.unload_model("mlp")
        http.unload_model("mlp")  # it is gone already
        assert states(http)["spin", "1"] == "READY"


def tenants(folder: Path, *entries: str) -> str:
    rows = [entry.partition(" ") for entry in entries]
    return "".join(f'[[tenants]]\nname = "{name}"\nartifact = "{folder / name}"\n{rest}\n' for name, _, rest in rows)


def test_the_configuration_is_read_again(artifacts: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    scaled_mlp(artifacts, models / "one", 1)
    scaled_mlp(artifacts, models / "two", 2)
    head = configuration(tmp_path, **OPTIONS)
    path = tmp_path / "serve.toml"
    with running(tmp_path, head + tenants(models, "one qos_ms = 20.0")) as daemon:
        http, rpc = triton_http.InferenceServerClient(daemon.http), triton_grpc.InferenceServerClient(daemon.grpc)
        checks = health_pb2_grpc.HealthStub(rpc._channel)

        def health(name: str) -> int:
            return int(checks.Check(health_pb2.HealthCheckRequest(service=name)).status)

        assert both(http, rpc, model="one") == {(1.0, "1")}
        path.write_text(head + tenants(models, "one qos_ms = 40.0", "two rate = 1000.0"))
        os.kill(daemon.process.pid, signal.SIGHUP)
        until("the second tenant", lambda: ("two", "1") in states(http) and http.is_model_ready("two"))
        assert both(http, rpc, model="two") == {(2.0**LAYERS, "1")}
        assert http.get_model_config("one")["parameters"]["qos_ms"]["string_value"] == "40.0"
        assert daemon.metric("veltair_qos_target_seconds", tenant="one") == 0.04
        assert health("two") == health_pb2.HealthCheckResponse.SERVING
        path.write_text(head + tenants(models, "two rate = 1000.0"))
        assert reload(daemon) == (200, {"done": ["unloaded one 1"]})
        assert health("one") == health_pb2.HealthCheckResponse.NOT_SERVING
        assert both(http, rpc, model="two") == {(2.0**LAYERS, "1")}
        for wrong, says in (
            ("[server\n", "line 1"),
            (head.replace("workers = 2", "workers = 3") + tenants(models, "two"), "server.workers: a change"),
            (head + tenants(models, "two", "none"), "none is not loaded: none: no model artifact there"),
        ):
            path.write_text(wrong)
            status, answer = reload(daemon)
            assert status == 400
            assert says in answer["error"]
            os.kill(daemon.process.pid, signal.SIGHUP)
            assert both(http, rpc, model="two") == {(2.0**LAYERS, "1")}
        with urllib.request.urlopen(f"http://{daemon.http}/admin/api/events") as page:
            events = json.load(page)["events"]
        told = {(event["kind"], event["subject"]) for event in events}
        assert told >= {("started", ""), ("model_loaded", "two"), ("model_unloaded", "one"), ("reloaded", "")}
        assert told >= {("reload_failed", ""), ("model_failed", "none")}
        http.close()
        rpc.close()


def test_a_repository_may_be_empty_at_first(artifacts: Path, tmp_path: Path) -> None:
    repository = tmp_path / "models"
    (repository / "spin" / "1").mkdir(parents=True)  # a model that is broken is left out
    (repository / "spin" / "1" / "manifest.json").write_text("{")
    with serving(tmp_path, repository) as (_, http, rpc):
        assert http.is_server_ready()
        assert states(http) == {("spin", "1"): "UNAVAILABLE"}
        scaled_mlp(artifacts, repository / "mlp" / "4", 2)
        rpc.load_model("mlp")
        assert both(http, rpc) == {(2.0**LAYERS, "4")}


def test_wrong_settings_leave_a_model_serving(artifacts: Path, tmp_path: Path) -> None:
    """Also files that are none, whose reader would wait without end, and a repository that is away for a while."""
    repository, own = tmp_path / "models", tmp_path / "own"
    scaled_mlp(artifacts, repository / "mlp" / "1", 1)
    scaled_mlp(artifacts, repository / "spare" / "1", 2)
    scaled_mlp(artifacts, own, 3)
    text = configuration(tmp_path, repository=str(repository), **OPTIONS)
    settings, config = repository / "mlp" / "tenant.toml", tmp_path / "serve.toml"
    with running(tmp_path, text + f'[[tenants]]\nname = "own"\nartifact = "{own}"\n') as daemon:
        http, rpc = triton_http.InferenceServerClient(daemon.http), triton_grpc.InferenceServerClient(daemon.grpc)

        def refused(says: str) -> None:
            for asks in (lambda: http.load_model("mlp"), lambda: rpc.load_model("mlp")):
                with pytest.raises(InferenceServerException, match=says):
                    asks()
            status, answer = reload(daemon)
            assert (status, says in answer["error"]) == (400, True), answer
            assert both(http, rpc) == {(1.0, "1")}
            assert both(http, rpc, model="spare") == {(2.0**LAYERS, "1")}

        for wrong, says in (("qos_ms = soon", "mlp/tenant.toml: not valid TOML"), ("a = " + "[" * 5000, "too deeply")):
            settings.write_text(wrong)
            refused(says)
        settings.unlink()
        os.mkfifo(settings)
        refused("mlp/tenant.toml: cannot be read: expected a file")
        settings.unlink()
        repository.rename(tmp_path / "away")
        refused("No such file or directory")
        (tmp_path / "away").rename(repository)
        scaled_mlp(artifacts, repository / "own" / "1", 4)  # the configuration's tenant goes before it
        http.load_model("own")
        assert both(http, rpc, model="own") == {(3.0**LAYERS, "1")}
        config.rename(tmp_path / "kept")
        os.mkfifo(config)
        assert "expected a file" in reload(daemon)[1]["error"]
        assert both(http, rpc) == {(1.0, "1")}
        http.close()
        rpc.close()
