"""Tenants that use more leave room for those that use less and are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import make_machine, make_tenant, simple_profile

from veltair.scheduler.events import BlockFinished, Decision, FinishQuery, QueryArrived, RejectQuery, StartBlock
from veltair.scheduler.policies.veltair.fair_share import MOST, STEP, WINDOW, FairShare
from veltair.scheduler.scheduler import Scheduler
from veltair.types import Query, Tenant

QOS_NS = 1000
SPARE_NS = 800.0


def named(name: str, weight: int = 1, priority: int = 1) -> Tenant:
    return replace(make_tenant(QOS_NS, name), weight=weight, priority=priority)


def begun(small: Tenant, large: Tenant, of_small: float = 100, of_large: float = 900) -> FairShare:
    """Both have used core time, one more than the other."""
    fair = FairShare()
    fair.used(small, of_small)
    fair.used(large, of_large)
    return fair


def test_what_is_kept_free_grows_with_refusals_of_who_uses_less_and_shrinks_with_its_admissions() -> None:
    small, large = named("small"), named("large")
    fair = begun(small, large)
    assert fair.spare_ns(large, SPARE_NS, 1) == 0
    fair.decided(small, 1, refused=True)
    fair.decided(small, 1, refused=True)
    assert fair.spare_ns(large, SPARE_NS, 1) == pytest.approx(2 * STEP * SPARE_NS)
    assert fair.spare_ns(small, SPARE_NS, 1) == 0
    fair.decided(small, 1, refused=False)
    assert 0 < fair.spare_ns(large, SPARE_NS, 1) < 2 * STEP * SPARE_NS
    for _ in range(300):
        fair.decided(small, 1, refused=False)
    assert fair.spare_ns(large, SPARE_NS, 1) == 0
    for _ in range(100):
        fair.decided(small, 1, refused=True)
    assert fair.spare_ns(large, SPARE_NS, 1) == MOST * SPARE_NS


def test_refusals_of_who_uses_most_change_nothing() -> None:
    small, large = named("small"), named("large")
    fair = begun(small, large)
    fair.decided(large, 1, refused=True)
    assert fair.spare_ns(small, SPARE_NS, 1) == fair.spare_ns(large, SPARE_NS, 1) == 0


@pytest.mark.parametrize(("weight", "kept"), [(1, True), (3, False)])
def test_use_counts_for_its_weight(weight: int, kept: bool) -> None:
    small, large = named("small"), named("large", weight)
    fair = begun(small, large, of_small=400)
    assert fair.is_short(small, 1) is kept
    fair.decided(small, 1, refused=True)
    assert (fair.spare_ns(large, SPARE_NS, 1) > 0) is kept


def test_who_has_as_much_as_others_is_owed_nothing() -> None:
    small, large = named("small"), named("large")
    fair = begun(small, large)
    fair.decided(small, 1, refused=True)
    fair.decided(small, 1, refused=True)
    fair.used(small, 800)
    assert fair.spare_ns(large, SPARE_NS, 1) == 0
    fair.decided(small, 1, refused=True)
    fair.used(large, 100)
    assert fair.spare_ns(large, SPARE_NS, 1) == pytest.approx(STEP * SPARE_NS)


def test_time_outside_of_blocks_counts() -> None:
    """As of small queries, whose blocks are the least of what they take."""
    small, large = named("small"), named("large")
    fair = begun(small, large, of_large=300)
    assert fair.is_short(small, 1)
    fair.served({"small": 600, "gone": 10_000})
    assert not fair.is_short(small, 1)
    assert fair.is_short(large, 1)


def test_of_three_the_one_between_makes_room_for_who_has_less_alone() -> None:
    small, middle, large = (named(name) for name in ("small", "middle", "large"))
    fair = begun(small, large)
    fair.used(middle, 500)
    fair.decided(middle, 1, refused=True)
    assert [fair.spare_ns(each, SPARE_NS, 1) > 0 for each in (small, middle, large)] == [False, False, True]
    fair.decided(small, 1, refused=True)
    assert [fair.spare_ns(each, SPARE_NS, 1) > 0 for each in (small, middle, large)] == [False, True, True]


@pytest.mark.parametrize(("priority", "kept"), [(1, True), (2, False)])
def test_nobody_makes_room_for_a_lower_priority(priority: int, kept: bool) -> None:
    small, large = named("small"), named("large", priority=priority)
    fair = begun(small, large)
    fair.decided(small, 1, refused=True)
    assert (fair.spare_ns(large, SPARE_NS, 1) > 0) is kept


def test_tenants_of_one_owner_have_one_part() -> None:
    """As lengths of one model are."""
    short, long = (replace(named(name), owner="text") for name in ("text[0]", "text[1]"))
    other = named("other")
    fair = begun(other, short, of_small=500, of_large=300)
    fair.used(long, 300)
    fair.decided(other, 1, refused=True)  # 500 beside 300 and 300
    assert fair.spare_ns(short, SPARE_NS, 1) == fair.spare_ns(long, SPARE_NS, 1) == pytest.approx(STEP * SPARE_NS)
    fair.forget("text[0]")
    assert fair.spare_ns(long, SPARE_NS, 1) == 0


def test_what_was_used_is_forgotten_with_the_window() -> None:
    small, large = named("small"), named("large")
    fair = begun(small, large)
    window_ns = WINDOW * QOS_NS
    assert fair.is_short(small, window_ns)
    fair.used(small, 500)  # in the window after
    assert fair.is_short(small, window_ns + window_ns // 4)
    assert not fair.is_short(small, window_ns + window_ns // 2)  # 500 + 50 beside 450
    assert not fair.is_short(small, 3 * window_ns) and not fair.is_short(large, 3 * window_ns)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(["used", "admitted", "refused"]), st.floats(0, 5e3)),
        max_size=60,
    )
)
def test_it_is_a_share_of_the_spare_time(steps: list[tuple[str, str, float]]) -> None:
    fair, now_ns = FairShare(), 0
    tenants = {name: named(name, weight) for weight, name in enumerate("abc", 1)}
    for name, what, amount in steps:
        tenant, now_ns = tenants[name], now_ns + int(amount)
        if what == "used":
            fair.used(tenant, amount)
        else:
            fair.decided(tenant, now_ns, refused=what == "refused")
        kept = [fair.spare_ns(each, SPARE_NS, now_ns) for each in tenants.values()]
        assert all(0 <= each <= MOST * SPARE_NS for each in kept)
        assert 0 in kept  # of who has used the least


@dataclass
class Flooded:
    """One core; blocks take what their profile says."""

    scheduler: Scheduler
    ends: list[tuple[int, int, int]] = field(default_factory=list)  # (when, query, layers)
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    tenant_of: dict[int, str] = field(default_factory=dict)

    def ask(self, number: int, tenant: str, now_ns: int) -> None:
        while self.ends and self.ends[0][0] <= now_ns:
            ended_ns, query, layers = heappop(self.ends)
            self._see(self.scheduler.handle(BlockFinished(ended_ns, query, layers, 100)), ended_ns)
        self.tenant_of[number] = tenant
        self._see(self.scheduler.handle(QueryArrived(now_ns, Query(number, tenant, now_ns))), now_ns)

    def _see(self, decisions: list[Decision], now_ns: int) -> None:
        for decision in decisions:
            if isinstance(decision, StartBlock):
                heappush(self.ends, (now_ns + 100, decision.block.query, decision.block.stop))
            elif isinstance(decision, RejectQuery):
                self.refused[self.tenant_of[decision.query]] += 1
            elif isinstance(decision, FinishQuery):
                self.done[self.tenant_of[decision.query]] += 1


def test_a_flood_leaves_the_neighbour_its_part() -> None:
    """The core takes ten queries in 1,000 ns; one tenant asks for three of them, the other for fifty."""
    tenants = [make_tenant(QOS_NS, "quiet"), make_tenant(QOS_NS, "flood")]
    machine = Flooded(Scheduler(make_machine(1), tenants, {"m": [simple_profile((100,))]}, "veltair", 1))
    number = 0
    for now_ns in range(0, 1_000_000, 20):
        number += 1
        machine.ask(number, "flood", now_ns)
        if now_ns % 340 == 0:
            number += 1
            machine.ask(number, "quiet", now_ns)
    asked = 1_000_000 // 340
    assert machine.done["quiet"] > 0.9 * asked
    assert machine.done["flood"] + machine.done["quiet"] > 0.9 * 10_000  # the core is in use all the time
