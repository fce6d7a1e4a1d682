"""`EngineLink`: joins the I/O threads with one engine process, by the tensor pool and a lane for each thread."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence

import numpy as np

from veltair.errors import OverloadedError, RefusalReason, VeltairError
from veltair.server.ipc.admission_gates import create_admission_gates, gates_bytes
from veltair.server.ipc.done_queries import DoneQueries, create_done_queries
from veltair.server.ipc.lane import create_lanes, lane_bytes, ring_records
from veltair.server.ipc.messages import LaneDescriptors
from veltair.server.ipc.native_library import array_address
from veltair.server.ipc.tenant_share import TenantShare, kept_slots
from veltair.server.ipc.tensor_pool import TensorPool
from veltair.server.wire import native
from veltair.server.wire.io_threads import IoThreads


class EngineLink:
    """The I/O threads' way to one engine process. It knows the free slots, in the place of `FreeSlots`.

    ::

        link = EngineLink(threads, pool, [TenantShare(), TenantShare(rate=100.0)], slots=256)
        link.use()  # once the engine is ready
        link.leave("the engine process ended")
    """

    def __init__(self, threads: IoThreads, pool: TensorPool, shares: Sequence[TenantShare], slots: int) -> None:
        """Raises VeltairError when there is no memory."""
        self._threads, self._pool = threads, pool  # which the threads use
        self._native, tenants = native.library(), len(shares)
        records = ring_records(slots)
        lanes = create_lanes(threads.count, records)
        self._memory = mmap.mmap(lanes, threads.count * lane_bytes(records))
        places = tenants * slots
        done = create_done_queries(threads.count, places)
        gates = create_admission_gates(tenants)
        self._gates = mmap.mmap(gates, gates_bytes(tenants))
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        wakes = tuple(threads.wake_descriptors)
        self.descriptors = LaneDescriptors(lanes, records, bell, wakes, done, places, gates)
        self._done = DoneQueries(self.descriptors)
        offsets = np.array([region.offset for region in pool.regions], np.uint64)
        sizes = np.array([region.slot_bytes for region in pool.regions], np.uint64)
        kept = kept_slots(shares, slots)
        rows = [(each.rate, each.burst, own, each.slots) for each, own in zip(shares, kept, strict=True)]
        native_shares = np.array(rows, native.SHARE)
        self._handle = self._native.wire_link(
            threads.handle,
            pool.address,
            ctypes.addressof(ctypes.c_char.from_buffer(self._memory)),
            records,
            self._done.address,
            ctypes.addressof(ctypes.c_char.from_buffer(self._gates)),
            bell,
            tenants,
            slots,
            array_address(native_shares),
            array_address(offsets),
            array_address(sizes),
        )
        if not self._handle:
            raise VeltairError("no memory for the queries of the I/O threads")

    @property
    def inherited(self) -> Sequence[int]:
        """Descriptors that the engine process needs."""
        own = self.descriptors
        return (own.lanes, own.done, own.gates, own.bell, *own.wakes)

    def use(self) -> None:
        """Have the threads send their queries to this engine."""
        self._native.wire_use(self._threads.handle, self._handle, None)

    def fail_all(self, why: str) -> None:
        """No thread uses this engine any more; the queries that wait for it fail for this reason."""
        if self._threads.handle:
            self._native.wire_use(self._threads.handle, None, why.encode())

    def leave(self, why: str) -> None:
        """As `fail_all`, once the engine process is gone: gives its lanes and slots back."""
        self.fail_all(why)
        handle, self._handle = self._handle, None
        self._native.wire_unlink(handle)
        os.close(self.descriptors.lanes)
        os.close(self.descriptors.done)
        os.close(self.descriptors.gates)
        os.close(self.descriptors.bell)

    @property
    def taken(self) -> int:
        count: int = self._native.wire_slots_taken(self._handle) if self._handle else 0
        return count

    def take(self, tenant: int, now_ns: int) -> int:
        """A slot of the tenant's region. Raises OverloadedError when there is none for it."""
        slot: int = self._native.wire_take_slot(self._handle, tenant, now_ns)
        if slot < 0:
            raise OverloadedError(RefusalReason.RATE if slot == native.RATE_SPENT else RefusalReason.SLOTS)
        return slot

    def give_back(self, tenant: int, slot: int) -> None:
        self._native.wire_give_back_slot(self._handle, tenant, slot)
