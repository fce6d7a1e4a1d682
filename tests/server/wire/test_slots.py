"""The slots of a tensor pool: what is kept for each tenant, what several share by weight, and rates."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_front import new_threads
from scripted_engine import MANIFEST
from tensor_pools import new_pool

from veltair.errors import OverloadedError, RefusalReason
from veltair.server.ipc.tenant_share import SECOND_NS, TenantShare, kept_slots
from veltair.server.repository.free_slots import THRESHOLD, FreeSlots
from veltair.server.wire.engine_link import EngineLink
from veltair.server.wire.io_threads import IoThreads


def may_take(shares: list[TenantShare], slots: int, held: dict[int, list[int]], tenant: int, refused: set[int]) -> bool:
    """`refused`: tenants that were refused a slot that is kept for nobody; this one is added where it is."""
    kept = kept_slots(shares, slots)
    shared = {other: max(0, len(own) - kept[other]) for other, own in held.items()}
    free = slots - sum(kept) - sum(shared.values())
    alone = sum(shared.values()) == shared[tenant] and not refused - {tenant}
    least = min((own for own in kept if own), default=slots)
    in_turn = alone or shared[tenant] * least < THRESHOLD * (kept[tenant] or 1) * free
    has_room = len(held[tenant]) < kept[tenant] or (free > 0 and in_turn)
    if len(held[tenant]) >= min(shares[tenant].slots, slots):
        return False
    if not has_room:
        refused.add(tenant)
    return has_room


Slots = TypeVar("Slots", FreeSlots, EngineLink)


def open_all(free: Slots, shares: list[TenantShare]) -> Slots:
    for tenant, share in enumerate(shares):
        free.open(tenant, share)
    return free


def python_slots(shares: list[TenantShare], slots: int) -> FreeSlots:
    return open_all(FreeSlots(slots, len(shares)), shares)


@contextmanager
def some_threads() -> Iterator[IoThreads]:
    """I/O threads for links that come and go. The memory of a link has descriptors, which other tests may count: it is
    collected once, since looking through all objects takes far longer than the use of a link."""
    threads = new_threads(1)
    try:
        yield threads
    finally:
        threads.close()
        gc.collect()


@contextmanager
def native_slots(threads: IoThreads, shares: list[TenantShare], slots: int) -> Iterator[EngineLink]:
    link = EngineLink(threads, new_pool([MANIFEST] * len(shares), slots), len(shares))
    try:
        yield open_all(link, shares)
    finally:
        link.leave("")


@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
@pytest.mark.parametrize("eager", [0, 1])
def test_who_floods_has_slots_by_weight_however_often_it_asks(native: bool, eager: int) -> None:
    shares, slots = [TenantShare(weight=2), TenantShare(), TenantShare()], 64
    held: list[list[int]] = [[], []]
    chance = random.Random(3)
    with (
        some_threads() as threads,
        native_slots(threads, shares, slots) if native else nullcontext(python_slots(shares, slots)) as free,
    ):
        for turn in range(500):
            if any(held):
                [ended] = chance.choices([0, 1], [len(own) for own in held])
                free.give_back(ended, held[ended].pop(0))
            for tenant in [eager] * 20 + [0, 1]:
                try:
                    held[tenant].append(free.take(tenant, turn * SECOND_NS // 1000))
                except OverloadedError:
                    continue
        assert 1.5 < len(held[0]) / len(held[1]) < 2.6, held
        assert free.take(2, 2 * SECOND_NS) >= 0  # what is kept for it, and nobody has taken


@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
def test_no_tenant_takes_the_slots_that_are_kept_for_another(native: bool) -> None:
    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.builds(TenantShare, weight=st.integers(1, 5), slots=st.integers(1, 20)), min_size=1, max_size=4),
        st.integers(1, 20),
        st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=80),
    )
    def check(shares: list[TenantShare], slots: int, steps: list[tuple[int, bool]]) -> None:
        held: dict[int, list[int]] = {tenant: [] for tenant in range(len(shares))}
        refused: set[int] = set()
        with native_slots(threads, shares, slots) if native else nullcontext(python_slots(shares, slots)) as free:
            for number, takes in steps:
                tenant = number % len(shares)
                if not takes:
                    if held[tenant]:
                        free.give_back(tenant, held[tenant].pop())
                elif may_take(shares, slots, held, tenant, refused):
                    slot = free.take(tenant, now_ns=0)
                    assert 0 <= slot < slots and slot not in held[tenant]
                    held[tenant].append(slot)
                else:
                    with pytest.raises(OverloadedError):
                        free.take(tenant, now_ns=0)
                assert free.taken == sum(map(len, held.values())) <= slots

    with some_threads() as threads:
        check()


@pytest.mark.parametrize("native", [False, True], ids=["python", "native"])
def test_no_tenant_asks_more_often_than_its_rate(native: bool) -> None:
    @settings(max_examples=60, deadline=None)
    @given(st.floats(0.5, 2000), st.integers(1, 5), st.lists(st.integers(0, SECOND_NS // 10), max_size=60))
    def check(rate: float, burst: int, pauses_ns: list[int]) -> None:
        shares, now_ns, tokens = [TenantShare(rate=rate, burst=burst), TenantShare()], SECOND_NS, float(burst)
        with native_slots(threads, shares, 200) if native else nullcontext(python_slots(shares, 200)) as free:
            for pause_ns in pauses_ns:
                now_ns += pause_ns
                tokens = min(burst, tokens + rate * (pause_ns / SECOND_NS))
                free.take(1, now_ns)
                if abs(tokens - 1) < 1e-6:
                    return  # rounding decides
                if tokens >= 1:
                    free.take(0, now_ns)
                    tokens -= 1
                else:
                    with pytest.raises(OverloadedError) as refused:
                        free.take(0, now_ns)
                    assert refused.value.reason is RefusalReason.RATE

    with some_threads() as threads:
        check()
