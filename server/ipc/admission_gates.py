"""`AdmissionGates`: until when queries of a tenant would be refused, as the engine tells the I/O threads of the front.

A policy that refuses a query for the work before it knows how long the next one like it would fare no better
(`RejectQuery.for_ns`). Until then the threads refuse such queries themselves, before they read them in whole: under
overload a refusal costs neither a slot nor a decision. Then the gate is ajar for a while: a query needs a pass, and the
engine gives one for each that it has decided about, two for one that it has admitted, so that a flood does not wait
with it to be refused one by one. The threads count what they do for each tenant, since the engine does not see it all.
Their end is `server/wire/gates.h`.
"""

from __future__ import annotations

import mmap
import os

from veltair.types import DEFAULT_PRIORITY_LEVEL, PRIORITY_LEVELS

GATE_WORDS = 8  # of 8 bytes by tenant and priority level, as `gate` in `server/wire/gates.h`
_SHUT_UNTIL, _AJAR_UNTIL, _LEAST_BATCH, _GIVEN, _TAKEN, _WORK = range(6)  # the last two are the threads' own
MOST_SHUT_NS = 20_000_000  # a client that leaves frees cores that the refusal reckoned with
AJAR_NS = 20_000_000  # for so long after that
UNDECIDED = 2  # queries of a level with the engine at first: one is decided about, one is on its way


def create_admission_gates(tenants: int) -> int:
    """New memory, with all gates open. Returns its descriptor."""
    fd = os.memfd_create("veltair-gates", os.MFD_CLOEXEC)
    os.truncate(fd, gates_bytes(tenants))
    return fd


def gates_bytes(tenants: int) -> int:
    return 8 * GATE_WORDS * PRIORITY_LEVELS * tenants


class AdmissionGates:
    """Maps the memory behind a descriptor of `create_admission_gates`.

    >>> gates = AdmissionGates(create_admission_gates(tenants=2), tenants=2)
    >>> gates.shut(tenant=1, batch=4, now_ns=1_000, for_ns=500)
    >>> gates.is_shut(1, batch=4, now_ns=1_499), gates.is_shut(1, batch=3, now_ns=1_499)
    (True, False)
    """

    def __init__(self, fd: int, tenants: int) -> None:
        self._words = memoryview(mmap.mmap(fd, gates_bytes(tenants))).cast("q")

    def shut(
        self, tenant: int, batch: int, now_ns: int, for_ns: int, priority_level: int = 1, ajar_ns: int = AJAR_NS
    ) -> None:
        """Queries of so many samples or more need not be asked about for a while, those of this level and those that
        go after it; then the gate is ajar for `ajar_ns`."""
        words, until_ns = self._words, now_ns + min(for_ns, MOST_SHUT_NS)
        for level in range(priority_level, PRIORITY_LEVELS + 1):
            at = _place(tenant, level)
            if batch < words[at + _LEAST_BATCH] or words[at + _SHUT_UNTIL] <= now_ns:
                words[at + _LEAST_BATCH] = batch
            elif batch > words[at + _LEAST_BATCH]:
                continue  # it is shut for smaller ones already
            words[at + _SHUT_UNTIL], words[at + _AJAR_UNTIL] = until_ns, until_ns + ajar_ns
            words[at + _GIVEN] = words[at + _TAKEN] + UNDECIDED

    def refuse(self, tenant: int, now_ns: int, for_ns: int) -> None:
        """All queries of the tenant are refused for a while; then none of them is, or needs a pass."""
        self.shut(tenant, 1, now_ns, for_ns, ajar_ns=0)

    def decided(self, tenant: int, now_ns: int, priority_level: int, *, admitted: bool) -> None:
        """The engine has decided about one of these queries: where the gate is ajar, another one may come, and two for
        one that was admitted."""
        words, at = self._words, _place(tenant, priority_level)
        if words[at + _SHUT_UNTIL] <= now_ns < words[at + _AJAR_UNTIL]:
            words[at + _GIVEN] += 2 if admitted else 1

    def is_shut(self, tenant: int, batch: int, now_ns: int, priority_level: int = DEFAULT_PRIORITY_LEVEL) -> bool:
        """Whether such a query would be refused, as the I/O threads read it."""
        words, at = self._words, _place(tenant, priority_level)
        if batch < words[at + _LEAST_BATCH] or now_ns >= words[at + _AJAR_UNTIL]:
            return False
        return now_ns < words[at + _SHUT_UNTIL] or words[at + _TAKEN] >= words[at + _GIVEN]

    def work(self, tenant: int) -> int:
        """What the threads have done for the tenant's number: 1 for each request, refused or not, and for each 128 KiB
        of tensors that came with it."""
        return sum(self._words[_place(tenant, level) + _WORK] for level in range(1, PRIORITY_LEVELS + 1))


def _place(tenant: int, level: int) -> int:
    return GATE_WORDS * (tenant * PRIORITY_LEVELS + level - 1)
