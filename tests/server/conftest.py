"""Real artifacts with real kernels, built once a session in a process of its own: this one loads no compiler."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from veltair import config
from veltair.config import ServeConfig
from veltair.server.front.engine_client import EngineClient
from veltair.server.ipc.messages import BlockStatus

SPIN_LAYERS = 64
LONG_TURNS = 1_000_000_000  # about 0.15 s a layer: far longer than any test looks on
WAIT_S = 60.0  # for what must come; a test that waits so long has failed


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of build_artifacts.py."""
    folder = tmp_path_factory.mktemp("artifacts")
    script = Path(__file__).with_name("build_artifacts.py")
    subprocess.run([sys.executable, script, folder], check=True, env=os.environ | {"TVM_USE_RUNTIME_LIB": "0"})
    return folder


@pytest.fixture
def configure(artifacts: Path, tmp_path: Path) -> Callable[..., ServeConfig]:
    """`configure("mlp", "spin", workers=2)`: a configuration of those tenants."""

    def make(*names: str, folder: Path = artifacts, **server: Any) -> ServeConfig:
        raw = {
            "server": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0", "workers": 2, "policy": "veltair-full"} | server,
            "tenants": [{"name": name, "artifact": str(folder / name)} for name in names],
        }
        return config.parse_config(raw, tmp_path / "serve.toml")

    return make


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


@asynccontextmanager
async def serving(configuration: ServeConfig) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(configuration)
    try:
        yield client
    finally:
        await client.shut_down()


async def until(what: str, condition: Callable[[], Awaitable[Any]]) -> Any:
    """The first truthy result of the condition, asked again and again."""
    give_up = time.monotonic() + WAIT_S
    while not (result := await condition()):
        assert time.monotonic() < give_up, f"waited {WAIT_S} s for: {what}"
        await asyncio.sleep(0.005)
    return result


async def block_under_way(client: EngineClient, tenant: str) -> BlockStatus:
    """A block of the tenant that has layers both behind and before it."""

    async def look() -> BlockStatus | None:
        blocks = (await client.snapshot()).status.running
        return next((b for b in blocks if b.tenant == tenant and b.start < b.layer < b.stop - 1), None)

    found: BlockStatus = await until(f"a block of {tenant} under way", look)
    return found


def spin_inputs(turns: int, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {"turns": np.array([turns], np.int32), "seed": np.array([seed], np.int32)}


def spin_state(turns: int, seed: int) -> int:
    """What the spin model answers."""
    state = seed
    for _ in range(SPIN_LAYERS * turns):
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
    return state - (1 << 32) if state >= 1 << 31 else state


def mlp_outputs(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the mlp model answers; the weights are those of build_artifacts.py."""
    generator = np.random.default_rng(7)
    for k, n in ((16, 32), (32, 32), (32, 8)):
        x = np.maximum(x @ generator.standard_normal((k, n), dtype=np.float32), 0)
    return x


def digests(names: Sequence[bytes], texts: Sequence[bytes], ids: Sequence[int]) -> list[list[int]]:
    """What the words model answers."""

    def polynomial(string: bytes) -> int:
        value = 0
        for byte in string:
            value = (value * 31 + byte) & 0xFFFFFFFF
        return value - (1 << 32) if value >= 1 << 31 else value

    return [
        [len(name), polynomial(name), len(text), polynomial(text), id_ & 0xFFFFFF]
        for name, text, id_ in zip(names, texts, ids, strict=True)
    ]


def living(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False
