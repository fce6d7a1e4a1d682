"""Tenants that flood: each gets its part, and who asks for little loses nothing."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
from example_models import spin_state
from running_daemon import Daemon, running, spin, until

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
WAITING = 64  # queries that each flood keeps waiting
TURNS = 200_000  # of each layer: tens of milliseconds a query, so that the slots stay taken
SLOTS = 24
ADMITTED = 150

CONFIGURATION = """[server]
http = "127.0.0.1:0"
grpc = "127.0.0.1:0"
workers = 2
policy = "{policy}"
queue_slots = {slots}
[[tenants]]
name = "two"
artifact = "{artifact}"
weight = 2
qos_ms = 100000.0
[[tenants]]
name = "one"
artifact = "{artifact}"
qos_ms = 100000.0
[[tenants]]
name = "quiet"
artifact = "{artifact}"
qos_ms = 100000.0
"""


class Flood:
    """As many queries of a tenant as make it wait, all the time, until it is told to end."""

    def __init__(self, daemon: Daemon, tenant: str) -> None:
        self.outcomes: Counter[str] = Counter()
        self._tenant, self._ending = tenant, threading.Event()
        self._room = threading.Semaphore(WAITING)
        self._client = triton_grpc.InferenceServerClient(daemon.grpc)
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        inputs = spin(triton_grpc, TURNS, 1)
        while not self._ending.is_set():
            self._room.acquire()
            self._client.async_infer(self._tenant, inputs, self._ended)

    def _ended(self, result: object, error: Exception | None) -> None:
        self.outcomes["done" if error is None else "refused"] += 1
        self._room.release()

    def is_one(self) -> bool:
        """Whether it has had its slots for a while, and was refused more."""
        return self.outcomes["refused"] > 100 and self.outcomes["done"] > 2 * SLOTS

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        for _ in range(WAITING):
            self._room.acquire()
        self._client.close()


@pytest.mark.parametrize("policy", ["veltair", "veltair-full"])
def test_two_who_flood_share_by_weight(rounds: Rounds, artifacts: Path, tmp_path: Path, policy: str) -> None:
    """Weights of 2 and 1, both flood: they are served 2 to 1, and of a quiet third one no query is refused."""
    # On cores that others use, clients in Python do not flood: only full runs, which have the machine, try it.
    # `tests/server/wire/test_slots.py` holds the shares exactly.
    tried = rounds(quick=0, full=20)
    text = CONFIGURATION.format(policy=policy, slots=SLOTS, artifact=artifacts / "spin")
    with running(tmp_path, text) as daemon:
        for _ in tried:
            floods = {name: Flood(daemon, name) for name in ("two", "one")}
            with triton_grpc.InferenceServerClient(daemon.grpc) as client:
                until("both to flood", lambda f=floods: all(each.is_one() for each in f.values()))
                before = {name: each.outcomes["done"] for name, each in floods.items()}
                done = dict.fromkeys(floods, 0)
                asked = 0
                while sum(done.values()) < ADMITTED:  # of the quiet one all are answered, none is refused
                    asked += 1
                    found = client.infer("quiet", spin(triton_grpc, asked, 3)).as_numpy("state")
                    assert found.tolist() == [spin_state(asked, 3)]
                    done = {name: each.outcomes["done"] - before[name] for name, each in floods.items()}
            for each in floods.values():
                each.end()
            assert 1.3 < done["two"] / done["one"] < 3, done
