"""Queries that go on while something breaks, and what became of each."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from native_http import infer as http_request
from running_daemon import Daemon, X, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

CLIENTS = 3  # of each protocol
HELD_TURNS = 1 << 16  # some milliseconds of a core
TYPED = ("503", "504", "500", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL")
MODULES = {  # of the command lines of processes
    "engine": "engine_main",
    "worker": "worker.worker",
    "loader": "artifact_loader",
    "fork server": "fork_server_main",
}
SHARED_MEMORY = Path("/dev/shm")


class Traffic:
    """Clients of both protocols that ask for mlp, one query after the other each, until they are told to end.

    `outcomes` counts right answers, typed errors, answers that are wrong, and queries that were lost: those of a
    connection that broke.
    """

    def __init__(self, daemon: Daemon, expected: Any = None) -> None:
        """`expected`: the right answer; default: what the daemon answers now."""
        self.outcomes: Counter[str] = Counter()
        self._ending = threading.Event()
        self._lock = threading.Lock()
        ways = [(triton_grpc, daemon.grpc), (triton_http, daemon.http)] * CLIENTS
        self.expected = first_answer(daemon) if expected is None else expected
        self._threads = [threading.Thread(target=self._ask, args=way, daemon=True) for way in ways]
        for thread in self._threads:
            thread.start()

    def _ask(self, module: Any, address: str) -> None:
        with module.InferenceServerClient(address) as client:
            inputs = [tensor(module, "x", X, "FP32")]
            while not self._ending.is_set():
                outcome = self._outcome(client, inputs)
                with self._lock:
                    self.outcomes[outcome] += 1
                if outcome == "lost" and self._ending.wait(0.02):  # nobody may be there; a client of a user asks again
                    break
        gevent.get_hub().destroy(destroy_loop=True)  # the event loop that tritonclient's HTTP made for this thread

    def _outcome(self, client: Any, inputs: Any) -> str:
        try:
            found = client.infer("mlp", inputs).as_numpy("y")
        except InferenceServerException as error:
            print("refused or failed:", error)  # a test that expects none shows what was said
            return "typed" if is_typed(error) else "lost"
        except Exception:
            return "lost"
        return "right" if np.array_equal(found, self.expected) else "wrong"

    def served(self, more: int) -> None:
        """Return when so many more queries have been answered right."""
        goal = self.outcomes["right"] + more
        until(f"{more} right answers more", lambda: self.outcomes["right"] >= goal)

    def end(self) -> Counter[str]:
        self._ending.set()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a query never ended"
        return self.outcomes


def first_answer(daemon: Daemon) -> Any:
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        return client.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")]).as_numpy("y")


def is_typed(error: InferenceServerException) -> bool:
    """Whether the daemon said it, rather than a connection that broke."""
    broken = "failed to connect" in str(error).lower() or "socket closed" in str(error).lower()
    return not broken and any(name in str(error.status()) for name in TYPED)


class Held:
    """Queries for spin that are asked at once, and how each ended: None, or an error."""

    def __init__(self, client: Any, count: int) -> None:
        self.ends: list[Any] = []
        self._count = count
        for _ in range(count):
            client.async_infer("spin", spin(triton_grpc, HELD_TURNS, 1), self._ended)

    def _ended(self, result: Any, error: Any) -> None:
        self.ends.append(error)

    def all(self) -> list[Any]:
        """The ends, once there are all of them."""
        until("all queries to end", lambda: len(self.ends) == self._count)
        return self.ends


@contextmanager
def traffic(daemon: Daemon, expected: Any = None) -> Iterator[Traffic]:
    asking = Traffic(daemon, expected)
    try:
        yield asking
    finally:
        asking.end()


def processes(daemon: Daemon) -> dict[str, list[psutil.Process]]:
    """Front, engine, loader, workers, and what engine and workers are forked from, by what they are."""
    front = psutil.Process(daemon.process.pid)
    found: dict[str, list[psutil.Process]] = {"front": [front], "engine": [], "worker": [], "loader": []}
    found["fork server"] = []  # that of engines, and that of workers
    for process in front.children(recursive=True):
        try:
            line = " ".join(process.cmdline())
        except psutil.Error:  # it has just ended
            continue
        for kind, module in MODULES.items():
            if module in line:
                found[kind].append(process)
    return found


def whole(daemon: Daemon, before: dict[str, list[psutil.Process]]) -> bool:
    """Whether there is an engine again, with as many workers as before, all of which hold all models."""
    try:
        held = sum(daemon.metric("veltair_workers", state=state) for state in ("idle", "busy"))
    except (OSError, AssertionError):  # no engine, or one that does not answer
        return False
    return held == len(before["worker"]) == len(processes(daemon)["worker"])  # one that has just died is counted


def seconds_until(what: str, condition: Callable[[], bool]) -> float:
    begin = time.monotonic()
    until(what, condition)
    return time.monotonic() - begin


def every_process(daemon: Daemon) -> list[psutil.Process]:
    return [process for kind in processes(daemon).values() for process in kind]


@contextmanager
def no_shared_memory_left() -> Iterator[None]:
    """Nothing stays in shared memory that was not there before. Tests in other processes remove their files again."""
    before = set(SHARED_MEMORY.iterdir())
    yield
    new = set(SHARED_MEMORY.iterdir()) - before
    until(f"others to remove {new}", lambda: not any(file.exists() for file in new))


@contextmanager
def nothing_left(daemon_starts: Any) -> Iterator[Daemon]:
    """A daemon of which neither a process nor shared memory is left at the end."""
    with no_shared_memory_left():
        with daemon_starts as daemon:
            known = every_process(daemon)
            yield daemon
            if daemon.process.poll() is None:
                known += every_process(daemon)
        _, left = psutil.wait_procs(known, WAIT_S)
        assert not left


def memory_bytes(process: psutil.Process) -> int:
    """What the process has of its own."""
    return int(process.memory_full_info().uss)


def descriptors(process: psutil.Process) -> int:
    return len(list(Path(f"/proc/{process.pid}/fd").iterdir()))


def soon(condition: Callable[[], bool], within_s: float) -> bool:
    """Wait for it, but not for long. Returns whether it came true."""
    give_up = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def leave(daemon: Daemon, chance: random.Random) -> None:
    """Begin a query for mlp over HTTP, or send all of it, and be gone."""
    data = http_request(path="/v2/models/mlp/infer")
    with connect(daemon.http) as client:
        client.sendall(data[: chance.randrange(1, len(data) + 1)])
        if chance.random() < 0.5:
            client.shutdown(socket.SHUT_WR)
