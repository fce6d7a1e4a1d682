"""Workers that write nonsense into the memory of claims: each costs itself alone, and no query hangs."""

from __future__ import annotations

import mmap
import random
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from example_models import spin_state
from lending_daemon import Burst, Long, costs_a_worker_alone, engine, lend_spin, serving, takes_spin, whole
from running_daemon import Daemon, spin, until
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


def overwrite(daemon: Daemon, where: slice, seed: int) -> None:
    """As a worker can, which has the same memory."""
    for descriptor in Path(f"/proc/{daemon.process.pid}/fd").iterdir():
        if "veltair-standing" in str(descriptor.readlink()):
            with descriptor.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[where] = random.Random(seed).randbytes(len(range(len(memory))[where]))
            return
    raise AssertionError("the front has no memory of claims")


@pytest.mark.parametrize("where", [slice(0, 4), slice(256, None), slice(None)], ids=["state", "claims", "all"])
def test_a_worker_that_writes_nonsense_costs_itself_alone(artifacts: Path, tmp_path: Path, where: slice) -> None:
    with serving(artifacts, tmp_path, hung_block_s=60.0, policy="veltair") as (daemon, client):
        before = engine(daemon)
        for seed in range(3):
            lend_spin(client)
            long, burst = Long(daemon, client), Burst(client, list(range(20)))
            overwrite(daemon, where, seed)
            late = Burst(client, list(range(20)))
            long.call.cancel()
            burst.right()
            late.right()
            until("queries to be taken", lambda: takes_spin(client))
            whole(daemon, client)
        costs_a_worker_alone(daemon, before, tmp_path / "log")


@pytest.mark.parametrize("seed", range(4))
def test_nonsense_once_a_query_was_taken_over_costs_its_worker_alone(
    artifacts: Path, tmp_path: Path, seed: int
) -> None:
    """Its end would not be heard: the worker writes it for orders that are withdrawn, and finds others."""
    with serving(artifacts, tmp_path, hung_block_s=60.0, policy="veltair") as (daemon, client):
        lend_spin(client)
        long = Long(daemon, client)
        until("it to be taken over", lambda: daemon.metric("veltair_workers", state="busy") == 1)
        overwrite(daemon, slice(0, 4), seed)
        Burst(client, list(range(20))).right()
        long.call.cancel()
        whole(daemon, client)
        assert "nonsense" in (tmp_path / "log").read_text()


def test_nonsense_while_no_worker_is_lent_costs_nobody(artifacts: Path, tmp_path: Path) -> None:
    with serving(artifacts, tmp_path, policy="veltair") as (daemon, client):
        for seed in range(8):
            overwrite(daemon, slice(None), seed)
            try:
                answer: Any = client.infer("spin", spin(triton_grpc, seed, 3), client_timeout=30)
            except InferenceServerException as error:
                raise AssertionError("a query was lost") from error
            assert answer.as_numpy("state").tolist() == [spin_state(seed, 3)]
        whole(daemon, client)
        assert daemon.metric("veltair_engine_restarts") == 0
