"""Memory that the system does not give (ENOMEM): to workers, the engine, the front, while they serve."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton_grpc
from running_daemon import Daemon, configuration, running, until
from running_engine import WAIT_S
from traffic import nothing_left, processes, traffic, whole
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
REFUSED = {503, 400, 0}  # 400: uvicorn's, where its own buffers get none; 0: the connection ended
LARGE = 60 << 20  # bytes of a request that the front has no room for, whatever its heap has kept


@contextmanager
def no_memory(process: psutil.Process, room: int = 0) -> Iterator[None]:
    """The system gives the process `room` bytes more, and no other."""
    before = process.rlimit(psutil.RLIMIT_AS)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + room, before[1]))
    try:
        yield
    finally:
        try:
            process.rlimit(psutil.RLIMIT_AS, before)
        except psutil.NoSuchProcess:
            return  # another has taken its place


def test_workers_without_memory(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """Workers get no memory: they serve what they hold, a model that comes is refused or waits, and is there after."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp", "spin", model_control=True))) as daemon:
        for _ in rounds(quick=1, full=20):
            before = processes(daemon)
            with triton_grpc.InferenceServerClient(daemon.grpc) as client:
                client.unload_model("spin")
                with traffic(daemon) as asking:
                    asking.served(50)
                    with no_memory(before["worker"][0]), no_memory(before["worker"][1]):
                        asking.served(100)
                        try:
                            client.load_model("spin", client_timeout=WAIT_S)
                        except InferenceServerException as error:
                            assert "spin is not loaded" in str(error), error
                        asking.served(100)
                    client.load_model("spin", client_timeout=WAIT_S)
                    until("all workers", lambda b=before: whole(daemon, b))
                assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes


def test_an_engine_without_memory(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """The engine gets no memory, and its workers die: who is left serves, and all are replaced once there is some."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp"))) as daemon:
        for _ in rounds(quick=1, full=20):
            before = processes(daemon)
            with traffic(daemon) as asking:
                asking.served(50)
                with no_memory(before["engine"][0], 4 << 20):
                    before["worker"][0].kill()
                    asking.served(200)
                until("all workers", lambda b=before: whole(daemon, b))
                asking.served(50)
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes


def large(daemon: Daemon) -> int:
    """The status of a request of many megabytes: JSON that is no request; 0 where the connection ended."""
    body = json.dumps({"inputs": [], "note": "." * LARGE}).encode()
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/models/mlp/infer", data=body, timeout=WAIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


def large_message(daemon: Daemon) -> str | None:
    """How a message of gRPC of many megabytes ends that names no input of the model."""
    x = triton_grpc.InferInput("none", [LARGE], "UINT8")
    x.set_data_from_numpy(np.zeros(LARGE, np.uint8))
    with triton_grpc.InferenceServerClient(daemon.grpc) as client, pytest.raises(InferenceServerException) as caught:
        client.infer("mlp", [x], client_timeout=WAIT_S)
    return str(caught.value.status())


def test_a_front_without_memory(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """The front gets no memory: what is large is refused with the reason, and what is small is served all the while."""
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp"))) as daemon:
        front = psutil.Process(daemon.process.pid)
        for number in rounds(quick=1, full=20):
            with traffic(daemon) as asking:
                asking.served(200)  # plans are learnt, threads and buffers are there
                with no_memory(front, 4 << 20):
                    ended = {large(daemon) for _ in range(4)}
                    messages = {large_message(daemon) for _ in range(2)}
                    asking.served(200)
                assert ended <= REFUSED, ended
                kept = {"StatusCode.INVALID_ARGUMENT"} if number else set()  # the heap keeps what a message took before
                assert messages <= {"StatusCode.RESOURCE_EXHAUSTED"} | kept
                assert large(daemon) == 400 and large_message(daemon) == "StatusCode.INVALID_ARGUMENT"
            assert not asking.outcomes.keys() & {"wrong", "lost"}, asking.outcomes
            assert daemon.status() == 200
