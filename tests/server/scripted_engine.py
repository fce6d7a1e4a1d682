"""The engine's end of a link to I/O threads, in the process of the test that says what it answers."""

from __future__ import annotations

import asyncio
import ctypes
import select
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from in_process_front import MANIFEST
from msgspec.structs import replace
from tensor_pools import new_pool

from veltair.profiles.artifact.input_layout import InputLayout, InputSlot
from veltair.profiles.artifact.manifest import PackedLocation, Port
from veltair.profiles.artifact.strings import Strings
from veltair.server.engine.front_lanes import FrontLanes
from veltair.server.ipc.admission_gates import GATE_WORDS
from veltair.server.ipc.done_queries import Caller, DoneQueries, pack_callers
from veltair.server.ipc.messages import InferQuery, Outcome, QueryEnded
from veltair.server.ipc.stages import EngineStamps
from veltair.server.ipc.tenant_share import TenantShare
from veltair.server.ipc.tensor_pool import TensorPool
from veltair.server.wire.engine_link import EngineLink
from veltair.server.wire.io_threads import IoThreads
from veltair.types import DEFAULT_PRIORITY_LEVEL, PRIORITY_LEVELS

MAX_TEXT = 6  # bytes a row on average
WORDS = replace(
    MANIFEST,
    model="words",
    inputs=(
        Port("more", "int64", (-1, 1), locations=(PackedLocation(0, 0),)),
        Port("text", "string", (-1, 1), locations=(PackedLocation(1, 0), PackedLocation(2, 0)), max_bytes=MAX_TEXT),
        Port("name", "string", (-1, 1), locations=(PackedLocation(1, 1), PackedLocation(2, MAX_TEXT)), max_bytes=2),
    ),
    packed_buffers=(Port("ints", "int64", (-1,)), Port("ends", "int32", (-2,)), Port("letters", "uint8", (-8,))),
    outputs=(Port("bytes", "int64", (-1, 1)),),
)
SUMS, ONE, TWO, WORDS_TENANT = range(4)  # the tenants, by number
QUEUE_NS, EXECUTE_NS, GAP_NS, REPORT_NS = 3_000, 2_000, 500, 700  # what it says of a query's way


class Held(NamedTuple):
    """A query that a scripted engine has."""

    lane: int
    message: InferQuery


class ScriptedEngine:
    """The engine's end of a link: answers on its own, or as a test says."""

    def __init__(
        self, threads: IoThreads, slots: int, shares: Sequence[TenantShare] | None = None, *, automatic: bool
    ) -> None:
        manifests = [*[MANIFEST] * 3, WORDS]
        self.pool: TensorPool = new_pool(manifests, slots)
        self.link = EngineLink(threads, self.pool, len(manifests))
        for tenant, share in enumerate(shares or [TenantShare()] * len(manifests)):
            self.link.open(tenant, share)
        self._poll = select.epoll()
        self._lanes = FrontLanes(self._poll, self.link.descriptors, len(manifests), slots)
        self._slots, self._done = slots, DoneQueries(self.link.descriptors)
        self.automatic = automatic
        self.teller: Literal["engine", "worker", "in turn"] = "in turn"  # of queries that are done
        self.count = 0  # of all queries that came
        self.aborted: list[int] = []
        self._arrived: asyncio.Queue[Held] = asyncio.Queue()
        self._news = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._poll.fileno(), self._read)

    def leave(self, why: str) -> None:
        """As if the process had ended."""
        asyncio.get_running_loop().remove_reader(self._poll.fileno())
        self._poll.close()
        self.link.leave(why)

    def shut(self, tenant: int, batch: int, until_ns: int = 1 << 62, level: int = 1) -> None:
        """Have the threads refuse the tenant's queries of so many samples or more, of this level or behind it, until a
        time."""
        words = self._lanes._gates._words
        for place in range(PRIORITY_LEVELS * tenant + level - 1, PRIORITY_LEVELS * (tenant + 1)):
            words[GATE_WORDS * place : GATE_WORDS * place + 3] = memoryview(array("q", [until_ns, until_ns, batch]))

    def set_ajar(self, tenant: int, batch: int) -> None:
        """As some time after it was shut."""
        self._lanes._gates.shut(tenant, batch, now_ns=0, for_ns=0)
        words = self._lanes._gates._words
        for level in range(PRIORITY_LEVELS):
            words[GATE_WORDS * (PRIORITY_LEVELS * tenant + level) + 1] = 1 << 62

    def decided(self, tenant: int, *, admitted: bool) -> None:
        """Tell that a query of the tenant has been decided about."""
        self._lanes._gates.decided(tenant, time.monotonic_ns(), DEFAULT_PRIORITY_LEVEL, admitted=admitted)

    def work(self, tenant: int) -> int:
        """What the threads have counted for the tenant."""
        return self._lanes.work(tenant)

    async def next(self) -> Held:
        """The next query that the test has to end."""
        return await self._arrived.get()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once the condition holds, which messages of the front bring about."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def inputs(self, held: Held) -> list[Any]:
        return [view.tolist() for view in self.pool.inputs(held.message.tenant, held.message.slot, held.message.batch)]

    def slots(self, held: Held) -> list[InputSlot]:
        """The inputs of a query for the tenant of words."""
        views = self.pool.inputs(held.message.tenant, held.message.slot, held.message.batch)
        return list(InputLayout.of(WORDS).slots(views, held.message.batch))

    def end(self, held: Held, outcome: Outcome = "done", reason: str = "") -> None:
        """End a query; one that is done has its sums as outputs."""
        message = held.message
        if outcome == "done":
            where = message.tenant, message.slot, message.batch
            if message.tenant == WORDS_TENANT:
                found = {s.port.name: s for s in self.slots(held)}
                self.pool.outputs(*where)[0][:] = found["more"].values + lengths(found["text"].strings())
            else:
                for given, result in zip(self.pool.inputs(*where), self.pool.outputs(*where), strict=True):
                    with np.errstate(all="ignore"):  # clients may send NaN
                        result[:] = given.sum(axis=1, keepdims=True)
        begin_ns = message.arrival_ns + QUEUE_NS
        end_ns = begin_ns + EXECUTE_NS + GAP_NS
        taken_ns = message.arrival_ns + QUEUE_NS // 2
        in_turn = self.teller == "in turn" and message.query % 2
        if outcome == "done" and (in_turn or self.teller == "worker"):
            caller = Caller(message.query, taken_ns, held.lane, message.tenant * self._slots + message.slot)
            packed = ctypes.create_string_buffer(pack_callers([caller]))
            self._done.report(ctypes.addressof(packed), 1, begin_ns, EXECUTE_NS, end_ns)
            return
        stamps = EngineStamps(taken_ns, begin_ns, end_ns, end_ns + REPORT_NS)
        ended = QueryEnded(message.query, outcome, reason, EXECUTE_NS, stamps)
        self._lanes.end(held.lane, ended, message.tenant, message.slot)
        self._lanes.wake_fronts()

    def _read(self) -> None:
        self._poll.poll(0)  # the bell is edge-triggered: this ends its event
        for lane, message in list(self._lanes.take()):
            if isinstance(message, InferQuery):
                self.count += 1
                if self.automatic:
                    self.end(Held(lane, message))
                else:
                    self._arrived.put_nowait(Held(lane, message))
            else:
                self.aborted.append(message.query)
        self._news.set()


def lengths(strings: Strings) -> Any:
    return np.diff(strings.offsets).reshape(-1, 1)
