"""Queries that come one by one, or short ones at once, on a lent worker, while workers are killed and clients leave."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from example_models import spin_state
from running_daemon import Daemon, configuration, running, spin, until
from traffic import is_typed, processes, whole
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
GAPS_S = (0.0, 0.0, 0.001, 0.004, 0.015)
TURNS = (0, 3, 1 << 10, 1 << 16)
BURST = 30


class LoneClients:
    """Two clients that ask now and then, so that most queries meet no other, and some do; some come at once, and some
    leave before the end."""

    def __init__(self, daemon: Daemon, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(daemon, 2 * seed + i)) for i in range(2)]
        for thread in self._threads:
            thread.start()

    def _ask(self, daemon: Daemon, seed: int) -> None:
        chance = random.Random(seed)
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            while not self._over.wait(chance.choice(GAPS_S)):
                if chance.random() < 0.05:
                    left = client.async_infer("spin", spin(triton_grpc, 1 << 20, 3), lambda result, error: None)
                    self._over.wait(chance.choice(GAPS_S))
                    left.cancel()
                turns = (
                    [chance.choice(TURNS)]
                    if chance.random() < 0.8
                    else [chance.choice(TURNS[:3]) for _ in range(BURST)]
                )
                outcomes = [
                    self._outcome(ask, each) for ask, each in [(self._sent(client, each), each) for each in turns]
                ]
                with self._lock:
                    self.outcomes.update(outcomes)

    def _sent(self, client: Any, turns: int) -> Callable[[], Any]:
        """Asks, and returns what waits for the answer."""
        ends: Queue[Any] = Queue()
        client.async_infer("spin", spin(triton_grpc, turns, 3), lambda result, error: ends.put(error or result))
        return lambda: ends.get(timeout=60)

    def _outcome(self, wait: Callable[[], Any], turns: int) -> str:
        end = wait()
        if isinstance(end, InferenceServerException):
            return "typed" if is_typed(end) else "lost"
        return "right" if end.as_numpy("state").tolist() == [spin_state(turns, 3)] else "wrong"

    def served(self, more: int) -> None:
        goal = self.outcomes["right"] + more
        until(f"{more} right answers more", lambda: self.outcomes["right"] >= goal)

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a query never ended"


def test_killed_workers_cost_lone_clients_their_own_queries(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """Workers are killed while queries come one by one or at once: each gets a right answer or a typed error, the
    engine lives, and no slot is lost."""
    with running(tmp_path, configuration(artifacts, "spin", policy="veltair")) as daemon:
        for seed in rounds(quick=2, full=100):
            before = processes(daemon)
            clients = LoneClients(daemon, seed)
            try:
                clients.served(40)
                random.Random(seed).choice(before["worker"]).kill()
                clients.served(40)
                until("all workers", lambda b=before: whole(daemon, b))
            finally:
                clients.end()
            assert not clients.outcomes.keys() & {"wrong", "lost"}, clients.outcomes
            until("no query to be held", lambda: daemon.metric("veltair_queries_held") == 0)
        assert daemon.metric("veltair_engine_restarts") == 0
