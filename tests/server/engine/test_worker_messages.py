"""`read_message`: what a worker says, where it can have meant it; all else costs that worker alone."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.worker_messages import BrokenMessageError, read_message
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel
from veltair.server.ipc.status_records import CoreChange

OWN, OTHER, GIVEN = 7, 8, (0, 1, 2)  # two batches, of which one is the worker's, and the cores that it may use
GROWN = m.CoresChanged(OWN, layer=2, cores=(0, 1), time_ns=1)


class Told:
    """A worker in the place of its own, what the engine has in flight, and the worker's end of the channel."""

    def __init__(self, state: str = "busy") -> None:
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sockets[0].setblocking(False)
        channel: Channel[m.FromWorker] = Channel(self.sockets[0], m.FromWorker)
        parts = {"channel": channel, "state": state, "change": m.UnloadModel(3), "cell": SimpleNamespace(cores=GIVEN)}
        self.worker = cast(WorkerProcess, SimpleNamespace(**parts))
        self.worker.is_changing = lambda number: WorkerProcess.is_changing(self.worker, number)  # type: ignore[method-assign]
        block = SimpleNamespace(start=1, stop=4)
        self.batches = {
            query: SimpleNamespace(
                running=True, worker=by, order=SimpleNamespace(block=block, core_set=(0,)), core_changes=[]
            )
            for query, by in ((OWN, self.worker), (OTHER, object()))
        }

    def has_batch(self, query: int) -> bool:
        return query in self.batches

    def batch(self, query: int) -> Any:
        batch = cast(InFlightBatch, self.batches[query])
        return SimpleNamespace(
            runs_on=lambda worker: InFlightBatch.runs_on(batch, worker),
            may_change_cores=lambda changed: InFlightBatch.may_change_cores(batch, changed),
        )

    def read(self, packet: bytes | msgspec.Struct) -> m.FromWorker | None:
        self.sockets[1].send(packet if isinstance(packet, bytes) else msgspec.msgpack.encode(packet))
        return read_message(self.worker, cast(InFlightQueries, self))

    def close(self) -> None:
        for each in self.sockets:
            each.close()


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.close()


def test_what_a_worker_says_in_its_place_is_read(told: Told) -> None:
    for message in (m.KernelFailed(OWN, "no"), m.KernelFailed(99, "of a claim"), GROWN):
        assert told.read(message) == message
    told.batches[OWN].core_changes.append(CoreChange(2, (0, 1), 1))
    last = msgspec.structs.replace(GROWN, cores=GIVEN, layer=4)
    assert told.read(last) == last
    assert read_message(told.worker, cast(InFlightQueries, told)) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"query": OTHER},
        {"query": 99},
        {"layer": 0},
        {"layer": 5},
        {"cores": ()},
        {"cores": (0, 3)},
        {"time_ns": -1},
        {"time_ns": time.monotonic_ns() + 10**15},
    ],
    ids=str,
)
def test_other_cores_than_it_can_have_found(told: Told, wrong: dict[str, Any]) -> None:
    with pytest.raises(BrokenMessageError, match="CoresChanged"):
        told.read(msgspec.structs.replace(GROWN, **wrong))


def test_a_claim_that_was_taken_over_finds_its_own_cores_once(told: Told) -> None:
    """It may have begun on others, while claims came fast."""
    own = msgspec.structs.replace(GROWN, cores=(0,))
    assert told.read(own) == own
    told.batches[OWN].core_changes.append(CoreChange(2, (0,), 1))
    with pytest.raises(BrokenMessageError):
        told.read(own)
    assert told.read(GROWN) == GROWN


def test_between_two_blocks_nothing_is_found(told: Told) -> None:
    told.batches[OWN].running, told.batches[OWN].order = False, None
    for message in (GROWN, m.KernelFailed(OWN, "no")):
        with pytest.raises(BrokenMessageError):
            told.read(message)


@pytest.mark.parametrize("state", ["starting", "idle", "busy", "attending", "changing"])
def test_answers_to_what_was_not_asked(state: str) -> None:
    told = Told(state)
    of_start = [m.ModelsLoaded(), m.StartFailed("ArtifactError", "no")]
    of_change = [m.ModelLoaded(3), m.ModelFailed(3, "ArtifactError", "no"), m.ModelUnloaded(3)]
    for message, asked in [(each, "starting") for each in of_start] + [(each, "changing") for each in of_change]:
        if state == asked:
            assert told.read(message) == message
        else:
            with pytest.raises(BrokenMessageError):
                told.read(message)
    with pytest.raises(BrokenMessageError):
        told.read(m.ModelLoaded(4))
    told.close()


@given(st.binary(min_size=1, max_size=64))
def test_bytes_are_a_message_or_an_error(packet: bytes) -> None:
    told = Told()
    try:
        told.read(packet)
    except BrokenMessageError:
        pass
    finally:
        told.close()
