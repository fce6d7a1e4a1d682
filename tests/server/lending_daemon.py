"""A daemon whose engine lends a worker to the front, and what a test asks of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tritonclient.grpc as triton_grpc
from example_models import LONG_TURNS, mlp_outputs, spin_state
from running_daemon import Daemon, X, configuration, running, spin, tensor, until
from traffic import is_typed, processes
from tritonclient.utils import InferenceServerException


def ask_mlp(client: Any, x: Any = X) -> None:
    found = client.infer("mlp", [tensor(triton_grpc, "x", x, "FP32")]).as_numpy("y")
    np.testing.assert_allclose(found, mlp_outputs(x), rtol=1e-4, atol=1e-4)


def engine(daemon: Daemon) -> psutil.Process:
    [found] = processes(daemon)["engine"]
    return found


def wake_ups(daemon: Daemon, ask: Callable[[], None]) -> int:
    """How often the engine slept while that was asked."""
    process = engine(daemon)
    before = process.num_ctx_switches().voluntary
    ask()
    return int(process.num_ctx_switches().voluntary - before)


def lend(daemon: Daemon, client: Any) -> None:
    """Ask until the engine sleeps through a query: the worker is lent."""
    until("a worker to be lent", lambda: wake_ups(daemon, lambda: ask_mlp(client)) == 0)


class Long:
    """A query for spin that takes far longer than those before it said, asked of a lent worker, and its end."""

    def __init__(self, daemon: Daemon, client: Any, turns: int = LONG_TURNS, **how: Any) -> None:
        for _ in range(8):
            assert client.infer("spin", spin(triton_grpc, 0, 3)).as_numpy("state").tolist() == [spin_state(0, 3)]
        self.ends: list[Any] = []
        self.call = client.async_infer("spin", spin(triton_grpc, turns, 3), self._ended, **how)
        until("it to be held", lambda: daemon.metric("veltair_queries_held") == 1)

    def _ended(self, result: Any, error: Any) -> None:
        self.ends.append(error or result)

    def end(self) -> Any:
        until("its end", lambda: bool(self.ends))
        return self.ends[0]


class Burst:
    """Queries for spin, sent at once."""

    def __init__(self, client: Any, turns: list[int], **how: Any) -> None:
        self.turns, self.ends = turns, dict[int, Any]()
        for number, each in enumerate(turns):
            client.async_infer("spin", spin(triton_grpc, each, 3), partial(self._ended, number), **how)

    def _ended(self, number: int, result: Any, error: Any) -> None:
        self.ends[number] = error or result

    def right(self, *, all_answered: bool = False) -> None:
        """Wait for all of them, and compare each answer with its reference; some may be refused, as by the policy."""
        until("all ends", lambda: len(self.ends) == len(self.turns))
        refused = [number for number, end in self.ends.items() if isinstance(end, InferenceServerException)]
        assert not (refused and all_answered) and all(is_typed(self.ends[number]) for number in refused)
        for number, turns in enumerate(self.turns):
            if number not in refused:
                assert self.ends[number].as_numpy("state").tolist() == [spin_state(turns, 3)]


def takes_spin(client: Any) -> bool:
    """Whether the front refuses no more, as it does for some milliseconds after the policy did."""
    try:
        client.infer("spin", spin(triton_grpc, 0, 3))
    except InferenceServerException as error:
        assert is_typed(error)
        return False
    return True


def lend_spin(client: Any) -> None:
    for _ in range(20):
        assert client.infer("spin", spin(triton_grpc, 0, 3)).as_numpy("state").tolist() == [spin_state(0, 3)]


@contextmanager
def serving(artifacts: Path, folder: Path, qos_ms: float = 20.0, **server: Any) -> Iterator[tuple[Daemon, Any]]:
    text = configuration(artifacts, "mlp", "spin", model_control=True, **server)
    text = text.replace("qos_ms = 20.0", f"qos_ms = {qos_ms}")
    with running(folder, text) as daemon, triton_grpc.InferenceServerClient(daemon.grpc) as client:
        yield daemon, client


def whole(daemon: Daemon, client: Any, workers: int = 2) -> None:
    """Nothing is held, all workers are there, and both models answer right, one by one. What was cancelled would run
    for longer than it may take."""
    until("no query to be held", lambda: daemon.metric("veltair_queries_held") == 0, seconds=8)
    until("all workers", lambda: daemon.metric("veltair_workers", state="idle") >= workers)
    for turns in range(10):
        ask_mlp(client)
        assert client.infer("spin", spin(triton_grpc, turns, 3)).as_numpy("state").tolist() == [spin_state(turns, 3)]


def costs_a_worker_alone(daemon: Daemon, before: psutil.Process, log: Path) -> None:
    """What a worker told was noticed, and the engine is that of `before`."""
    assert engine(daemon) == before
    assert daemon.metric("veltair_engine_restarts") == 0
    text = log.read_text()
    assert "nonsense" in text
    assert "Traceback" not in text
