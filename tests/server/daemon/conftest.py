"""Clients of the daemon that a test module's fixture `daemon` starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from running_daemon import Daemon, configuration, running
from running_engine import WAIT_S
from short_measurements import measured_shortly  # noqa: F401

from veltair.profiles.artifact.artifact_folder import MANIFEST
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.runtime.answer_check import store_answer


@pytest.fixture
def http(daemon: Any) -> Iterator[triton_http.InferenceServerClient]:
    with triton_http.InferenceServerClient(daemon.http, network_timeout=WAIT_S) as client:
        yield client


@pytest.fixture
def rpc(daemon: Any) -> Iterator[triton_grpc.InferenceServerClient]:
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        yield client


@pytest.fixture
def clients(http: Any, rpc: Any) -> list[tuple[Any, Any]]:
    """Over both protocols, of the daemon that a module's fixture of that name starts: a client and its package."""
    return [(http, triton_http), (rpc, triton_grpc)]


@pytest.fixture(scope="session")
def bounded(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts, and one more: spin with ids, `seed` from 0 to 99."""
    folder = tmp_path_factory.mktemp("bounded")
    for name in ("mlp", "spin", "ranged"):
        target = folder / name
        target.mkdir()
        for file in (artifacts / ("spin" if name == "ranged" else name)).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    path = folder / "ranged" / MANIFEST
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    inputs = tuple(
        msgspec.structs.replace(port, low=0, high=99) if port.name == "seed" else port for port in manifest.inputs
    )
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, model="ranged", inputs=inputs)))
    store_answer(path.parent)  # that of spin is the answer to other seeds
    return folder


@pytest.fixture
def memory() -> Iterator[Any]:
    """320 bytes of inputs, 160 of outputs."""
    handle = shm.create_shared_memory_region("tensors", f"veltair-test-{os.getpid()}", 480)
    yield handle
    shm.destroy_shared_memory_region(handle)


@pytest.fixture(scope="module", params=[1, 0], ids=["native", "python"])
def fronts(request: pytest.FixtureRequest) -> int:
    """Threads for gRPC in C; 0 for none, where Python reads and writes."""
    number: int = request.param
    return number


@pytest.fixture(scope="module")
def daemon(bounded: Path, fronts: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(bounded, "mlp", "spin", "ranged", body_limit_mb=4, shared_memory=True, fronts=fronts)
    with running(tmp_path_factory.mktemp("daemon"), text) as started:
        yield started
