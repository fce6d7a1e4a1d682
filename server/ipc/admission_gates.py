"""`AdmissionGates`: until when queries of a tenant would be refused, as the engine tells the I/O threads of the front.

A policy that refuses a query for the work before it knows how long the next one like it would fare no better
(`RejectQuery.for_ns`). Until then the threads refuse such queries themselves, before they read them in whole: under
overload a refusal costs neither a slot nor a decision. The threads count what they do for each tenant, since the engine
does not see it all. Their end is `server/wire/gates.h`.
"""

from __future__ import annotations

import mmap
import os

from veltair.types import DEFAULT_PRIORITY_LEVEL, PRIORITY_LEVELS

_WORDS = 3  # of 8 bytes by tenant and priority level: shut until, from this batch on, work of the threads
MOST_SHUT_NS = 20_000_000  # a client that leaves frees cores that the refusal reckoned with


def create_admission_gates(tenants: int) -> int:
    """New memory, with all gates open. Returns its descriptor."""
    fd = os.memfd_create("veltair-gates", os.MFD_CLOEXEC)
    os.truncate(fd, gates_bytes(tenants))
    return fd


def gates_bytes(tenants: int) -> int:
    return 8 * _WORDS * PRIORITY_LEVELS * tenants


class AdmissionGates:
    """Maps the memory behind a descriptor of `create_admission_gates`.

    >>> gates = AdmissionGates(create_admission_gates(tenants=2), tenants=2)
    >>> gates.shut(tenant=1, batch=4, now_ns=1_000, for_ns=500)
    >>> gates.is_shut(1, batch=4, now_ns=1_499), gates.is_shut(1, batch=3, now_ns=1_499)
    (True, False)
    """

    def __init__(self, fd: int, tenants: int) -> None:
        self._words = memoryview(mmap.mmap(fd, gates_bytes(tenants))).cast("q")

    def shut(self, tenant: int, batch: int, now_ns: int, for_ns: int, priority_level: int = 1) -> None:
        """Queries of so many samples or more need not be asked about for a while, those of this level and those that
        go after it."""
        words, until_ns = self._words, now_ns + min(for_ns, MOST_SHUT_NS)
        for level in range(priority_level, PRIORITY_LEVELS + 1):
            at = _place(tenant, level)
            if batch < words[at + 1] or words[at] <= now_ns:
                words[at + 1] = batch
            elif batch > words[at + 1]:
                continue  # it is shut for smaller ones already
            words[at] = until_ns

    def is_shut(self, tenant: int, batch: int, now_ns: int, priority_level: int = DEFAULT_PRIORITY_LEVEL) -> bool:
        """Whether such a query would be refused, as the I/O threads read it."""
        at = _place(tenant, priority_level)
        return now_ns < self._words[at] and batch >= self._words[at + 1]

    def work(self, tenant: int) -> int:
        """What the threads have done for the tenant's number: 1 for each request, refused or not, and for each 128 KiB
        of tensors that came with it."""
        return sum(self._words[_place(tenant, level) + 2] for level in range(1, PRIORITY_LEVELS + 1))


def _place(tenant: int, level: int) -> int:
    return _WORDS * (tenant * PRIORITY_LEVELS + level - 1)
