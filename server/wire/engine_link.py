"""`EngineLink`: joins the I/O threads with one engine process, by the tensor pool and a lane for each thread."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from veltair.errors import FailureReason, OverloadedError, RefusalReason, VeltairError
from veltair.machine.native_library import array_address
from veltair.server.ipc.admission_gates import create_admission_gates, gates_bytes
from veltair.server.ipc.done_queries import DoneQueries, create_done_queries
from veltair.server.ipc.lane import create_lanes, lane_bytes, ring_records
from veltair.server.ipc.lane_descriptors import LaneDescriptors
from veltair.server.ipc.standing_orders import StandingOrders, create_standing_orders
from veltair.server.ipc.tenant_share import SharedSlots, TenantShare
from veltair.server.ipc.tensor_pool import TensorPool
from veltair.server.wire import native
from veltair.server.wire.io_threads import IoThreads


class EngineLink:
    """The I/O threads' way to one engine process. It knows the free slots, in the place of `FreeSlots`.

    ::

        link = EngineLink(threads, pool, capacity=2)
        link.open(0, TenantShare(rate=100.0))  # its region is in the pool
        link.use()  # once the engine is ready
        link.leave("the engine process ended")
    """

    def __init__(self, threads: IoThreads, pool: TensorPool, capacity: int) -> None:
        """`capacity`: tenants at once; their numbers are below this. Raises VeltairError when there is no memory."""
        self._threads, self._pool = threads, pool  # which the threads use
        self._native, self._shares, slots = native.library(), SharedSlots(pool.slots, capacity), pool.slots
        records, places = ring_records(slots), capacity * slots
        with ExitStack() as undo:

            def own(descriptor: int) -> int:
                undo.callback(os.close, descriptor)
                return descriptor

            lanes = own(create_lanes(threads.count, records))
            self._memory = mmap.mmap(lanes, threads.count * lane_bytes(records))
            done = own(create_done_queries(threads.count, places))
            gates = own(create_admission_gates(capacity))
            self._gates = mmap.mmap(gates, gates_bytes(capacity))
            standing = own(create_standing_orders(threads.count))
            self._standing = StandingOrders(standing, threads.count)
            bell = own(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK))
            wakes = tuple(threads.wake_descriptors)
            self.descriptors = LaneDescriptors(lanes, records, bell, wakes, done, places, gates, standing)
            self._done = DoneQueries(self.descriptors)
            self._handle = self._native.wire_link(
                threads.handle,
                ctypes.addressof(ctypes.c_char.from_buffer(self._memory)),
                records,
                self._done.address,
                self._standing.address,
                ctypes.addressof(ctypes.c_char.from_buffer(self._gates)),
                bell,
                capacity,
                slots,
            )
            if not self._handle:
                raise VeltairError("no memory for the queries of the I/O threads")
            undo.pop_all()

    @property
    def passed(self) -> Sequence[int]:
        """Descriptors that the engine process gets."""
        own = self.descriptors
        return (own.lanes, own.done, own.gates, own.standing, own.bell, *own.wakes)

    def open(self, tenant: int, share: TenantShare) -> None:
        """Queries of this tenant may come. Its region is in the pool."""
        region, row = self._pool.regions[tenant], np.array([(share.rate, share.burst, 0, share.slots)], native.SHARE)
        where = self._pool.address(tenant), region.slot_bytes
        self._native.wire_open_tenant(self._handle, tenant, *where, array_address(row))
        self._keep(self._shares.add(tenant, share))

    def close(self, tenant: int) -> None:
        """No more queries of this tenant begin."""
        if self._handle:
            self._native.wire_close_tenant(self._handle, tenant)
            self._keep(self._shares.remove(tenant))

    def _keep(self, kept: Sequence[int]) -> None:
        self._native.wire_keep_slots(self._handle, array_address(np.array(kept, np.int32)))

    def held(self, tenant: int) -> int:
        """Slots that queries of the tenant hold."""
        count: int = self._native.wire_slots_held(self._handle, tenant) if self._handle else 0
        return count

    def use(self) -> None:
        """Have the threads send their queries to this engine."""
        self._native.wire_use(self._threads.handle, self._handle, None, 0)

    def fail_all(self, why: str, reason: FailureReason = FailureReason.ENGINE_DIED) -> None:
        """No thread uses this engine any more; the queries that wait for it fail for this reason."""
        if self._threads.handle:
            self._native.wire_use(self._threads.handle, None, why.encode(), reason.number)

    def leave(self, why: str) -> None:
        """Do the same as `fail_all` once the engine process is gone, and give its lanes and slots back, and all memory
        of the link."""
        self.fail_all(why)
        handle, self._handle = self._handle, None
        self._native.wire_unlink(handle)
        os.close(self.descriptors.lanes)
        os.close(self.descriptors.done)
        os.close(self.descriptors.gates)
        os.close(self.descriptors.standing)
        os.close(self.descriptors.bell)
        del self._memory, self._gates, self._standing, self._done

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
