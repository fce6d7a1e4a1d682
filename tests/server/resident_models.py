"""A daemon whose models do not all fit into memory, and its clients."""

from __future__ import annotations

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import mlp_outputs
from large_models import WEIGHTS_BYTES, large_mlp
from model_versions import LAYERS
from running_daemon import Daemon, X, configuration, running, spin, tensor

from veltair.errors import RefusalReason

LOAD_S = 300.0  # a load leaves the cores to all that others run on the machine
BUDGET = 5 * WEIGHTS_BYTES // 2  # two of the models, and what is small
NAMES = ("one", "two", "three")
PATIENT: dict[Any, dict[str, Any]] = {triton_http: {"network_timeout": LOAD_S}, triton_grpc: {}}


def make_models(artifacts: Path, folder: Path) -> Path:
    """Three large models that answer differently, and a small one."""
    for scale, name in enumerate(NAMES, 1):
        large_mlp(artifacts, folder / name, scale)
    shutil.copytree(artifacts / "spin", folder / "spin")
    return folder


def expected(name: str) -> Any:
    return (1 + NAMES.index(name)) ** LAYERS * mlp_outputs(X)


def loader_of(pid: int) -> psutil.Process:
    return next(p for p in psutil.Process(pid).children() if any("artifact_loader" in word for word in p.cmdline()))


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            process.resume()


def ignore(result: Any, error: Any) -> None:
    """What an answer is that nobody waits for."""


def waiting(clients: Clients) -> float:
    """Queries that wait for a model."""
    return clients.daemon.metric("veltair_queries_waiting_for_memory")


def refused(clients: Clients, name: str) -> bool:
    status, _, document = post(clients, name)
    return status == 503 and document == {"error": RefusalReason.NOT_RESIDENT.text}


def post(clients: Clients, name: str) -> tuple[int, dict[str, str], Any]:
    """Status, headers and document of an inference."""
    entry = {"name": "x", "shape": list(X.shape), "datatype": "FP32", "data": X.ravel().tolist()}
    url = f"http://{clients.daemon.http}/v2/models/{name}/infer"
    try:
        with urllib.request.urlopen(url, json.dumps({"inputs": [entry]}).encode()) as answer:
            return answer.status, dict(answer.headers), json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {key.lower(): value for key, value in error.headers.items()}, json.load(error)


class Clients:
    def __init__(self, daemon: Daemon) -> None:
        self.daemon, self.pid = daemon, daemon.process.pid
        self.http = triton_http.InferenceServerClient(daemon.http, network_timeout=LOAD_S)
        self.rpc = triton_grpc.InferenceServerClient(daemon.grpc)

    def close(self) -> None:
        self.http.close()
        self.rpc.close()

    def right(self, name: str, **how: Any) -> bool:
        """Whether both protocols give the right answer."""
        return all(self.ask(module, name, **how) for module in (triton_http, triton_grpc))

    def ask(self, module: Any, name: str, **how: Any) -> bool:
        address = self.daemon.http if module is triton_http else self.daemon.grpc
        with module.InferenceServerClient(address, **PATIENT[module]) as client:  # each stays with its thread
            answer = client.infer(name, [tensor(module, "x", X, "FP32")], **how).as_numpy("y")
        return bool(np.allclose(answer, expected(name), rtol=1e-4, atol=1e-4))

    def away(self) -> list[str]:
        """Those that are not in memory."""
        rows = self.http.get_model_repository_index()
        return [row["name"] for row in rows if row["state"] == "READY" and row["reason"]]

    def count(self, name: str, tenant: str) -> float:
        return self.daemon.metric(name, tenant=tenant)


@contextmanager
def serving(models: Path, *names: str, pinned: str = "", **options: Any) -> Iterator[Clients]:
    text = configuration(
        models, *names, **({"max_resident_bytes": BUDGET, "model_control": True, "model_wait_s": LOAD_S} | options)
    )
    if pinned:
        text = text.replace(f'name = "{pinned}"', f'name = "{pinned}"\nresident = true')
    with running(models, text) as daemon:
        clients = Clients(daemon)
        try:
            yield clients
        finally:
            clients.close()


@contextmanager
def asking(clients: Clients, count: int = 1) -> Iterator[list[Exception]]:
    """A neighbour's queries, without a pause, while the block runs. Gives their failures."""
    failures: list[Exception] = []
    stop = threading.Event()

    def ask(module: Any, address: str) -> None:
        client = module.InferenceServerClient(address)
        while not stop.is_set():
            try:
                client.infer("spin", spin(module, 10, 1))
            except Exception as error:
                failures.append(error)
                break
        client.close()

    where = ((triton_http, clients.daemon.http), (triton_grpc, clients.daemon.grpc)) * count
    threads = [threading.Thread(target=ask, args=each) for each in where]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        stop.set()
        for thread in threads:
            thread.join()
