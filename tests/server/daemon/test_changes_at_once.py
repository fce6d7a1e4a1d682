"""Several who change what is served at the same time, or go away while it changes."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import mlp_outputs
from model_versions import LAYERS, scaled_mlp
from resident_models import LOAD_S, PATIENT, Clients, asking, loader_of, stopped
from running_daemon import X, configuration, reload, running, tensor, until
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


@pytest.fixture
def clients(artifacts: Path, tmp_path: Path) -> Any:
    folder = tmp_path / "models"
    scaled_mlp(artifacts, folder / "mlp" / "1", 1)
    shutil.copytree(artifacts / "spin", folder / "spin")
    text = configuration(tmp_path, repository=str(folder), model_control=True, model_wait_s=LOAD_S)
    with running(tmp_path, text) as daemon:
        made = Clients(daemon)
        yield made
        made.close()


def answer(clients: Clients) -> tuple[float, str]:
    """How many times the first version's answer mlp gives, and its version."""
    result = clients.rpc.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")])
    return round(float(np.sum(result.as_numpy("y")) / np.sum(mlp_outputs(X))), 3), result.get_response().model_version


def change(clients: Clients, module: Any, what: str, **how: Any) -> None:
    address = clients.daemon.http if module is triton_http else clients.daemon.grpc
    with module.InferenceServerClient(address, **PATIENT[module]) as client:
        (client.load_model if what == "load" else client.unload_model)("mlp", **how)


def test_many_load_the_same_version(artifacts: Path, tmp_path: Path, clients: Clients) -> None:
    with asking(clients) as failures, ThreadPoolExecutor(8) as pool:
        for version in (2, 3):
            scaled_mlp(artifacts, tmp_path / "models" / "mlp" / str(version), version)
            loads = [pool.submit(change, clients, module, "load") for module in (triton_http, triton_grpc) * 4]
            for load in loads:
                load.result()
            assert answer(clients) == (float(version**LAYERS), str(version))
    assert not failures


def test_whoever_asked_for_a_load_goes_away(artifacts: Path, tmp_path: Path, clients: Clients) -> None:
    scaled_mlp(artifacts, tmp_path / "models" / "mlp" / "2", 2)
    with stopped(loader_of(clients.pid)):
        with pytest.raises(InferenceServerException, match=r"Deadline Exceeded|DEADLINE"):
            change(clients, triton_grpc, "load", client_timeout=0.5)
        assert answer(clients) == (1.0, "1")
    until("the load", lambda: answer(clients) == (2.0**LAYERS, "2"))
    change(clients, triton_http, "unload")
    change(clients, triton_http, "load")
    assert answer(clients) == (2.0**LAYERS, "2")


def test_unloads_and_reloads_during_a_load(artifacts: Path, tmp_path: Path, clients: Clients) -> None:
    log = tmp_path / "log"
    scaled_mlp(artifacts, tmp_path / "models" / "mlp" / "2", 2)
    with asking(clients) as failures, ThreadPoolExecutor(3) as pool:
        with stopped(loader_of(clients.pid)):
            load = pool.submit(change, clients, triton_http, "load")
            until("it loads", lambda: ("2", "LOADING") in states(clients))
            unload = pool.submit(change, clients, triton_grpc, "unload")
            os.kill(clients.pid, signal.SIGHUP)
            assert answer(clients) == (1.0, "1")
        load.result()
        unload.result()
        until("it is read again", lambda: "the configuration was read again" in log.read_text())
        assert reload(clients.daemon)[0] == 200
        assert answer(clients) == (2.0**LAYERS, "2")
    assert not failures
    assert clients.daemon.metric("veltair_worker_deaths_total") == 0


def states(clients: Clients) -> set[tuple[str, str]]:
    return {(row["version"], row["state"]) for row in clients.http.get_model_repository_index() if row["name"] == "mlp"}
