"""Layers that are longer than others can wait leave them cores."""

import pytest
from scheduler_builders import arrives, make_machine, simple_profile

from veltair.scheduler.events import BlockFinished, FinishQuery, StartBlock
from veltair.scheduler.policies.veltair.patience import FRESH_NS
from veltair.scheduler.scheduler import Scheduler
from veltair.types import QoSTarget, Tenant

MS = 1_000_000
LONG_LAYER = (40 * MS, 22 * MS, 15 * MS, 12 * MS)  # on 1 … 4 cores
SHORT_LAYER = (1 * MS, MS // 2, MS // 3, MS // 4)


def scheduler_of(quick_ns, *, cores=2, slow_ns=400 * MS, quick=SHORT_LAYER):
    """`slow` has a long layer between short ones, `quick` one layer and a target of `quick_ns`."""
    profiles = {
        "slow": [simple_profile(SHORT_LAYER, LONG_LAYER, SHORT_LAYER, model="slow")],
        "quick": [simple_profile(quick, model="quick")],
    }
    tenants = [Tenant("slow", "slow", QoSTarget(slow_ns)), Tenant("quick", "quick", QoSTarget(quick_ns))]
    return Scheduler(make_machine(cores), tenants, profiles, "veltair", 8)


def cores_of(decisions):
    return {each.block.query: each.block.cores for each in decisions if isinstance(each, StartBlock)}


def quick_comes(scheduler, at_ns=0, id=1):
    """One query of `quick`, alone. Returns when it has ended."""
    [start] = arrives(scheduler, id, at_ns, "quick")
    scheduler.handle(BlockFinished(at_ns + MS, id, start.block.stop, MS // 2))
    return at_ns + MS


@pytest.mark.parametrize(("quick_ms", "cores"), [(25, 1), (100, 2)])
def test_a_layer_that_others_cannot_wait_for_leaves_them_a_core(quick_ms, cores):
    scheduler = scheduler_of(quick_ms * MS)
    now_ns = quick_comes(scheduler)
    assert cores_of(arrives(scheduler, 2, now_ns, "slow")) == {2: cores}
    left = arrives(scheduler, 3, now_ns + MS, "quick")
    assert cores_of(left) == ({3: 1} if cores == 1 else {})


def test_nobody_is_waited_for_who_has_not_come_for_long():
    scheduler = scheduler_of(25 * MS)
    assert cores_of(arrives(scheduler, 2, quick_comes(scheduler) + FRESH_NS + MS, "slow")) == {2: 2}


def test_nothing_is_kept_before_anybody_has_come_nor_from_the_same_tenant():
    scheduler = scheduler_of(25 * MS, slow_ns=60 * MS)
    [start] = arrives(scheduler, 1, 0, "slow")
    assert start.block.cores == 2
    scheduler.handle(BlockFinished(23 * MS, 1, 3, 23 * MS))
    assert cores_of(arrives(scheduler, 2, 24 * MS, "slow")) == {2: 2}


def test_a_query_that_is_not_in_time_without_takes_all_cores():
    scheduler = scheduler_of(25 * MS, slow_ns=42 * MS)
    assert cores_of(arrives(scheduler, 2, quick_comes(scheduler), "slow")) == {2: 2}


def test_others_are_left_as_many_as_they_need():
    scheduler = scheduler_of(10 * MS, cores=4, quick=(8 * MS, 4 * MS, 3 * MS, 2 * MS))
    now_ns = quick_comes(scheduler)
    assert cores_of(arrives(scheduler, 2, now_ns, "slow")) == {2: 2}


def test_idle_cores_are_not_given_to_a_long_layer():
    scheduler = scheduler_of(25 * MS)
    now_ns = quick_comes(scheduler)
    assert cores_of(arrives(scheduler, 2, now_ns, "slow")) == {2: 1}
    assert cores_of(arrives(scheduler, 3, now_ns, "quick")) == {3: 1}
    assert scheduler.handle(BlockFinished(now_ns + MS, 3, 1, MS)) == [FinishQuery(3)]  # the core that it had stays free


def test_the_rest_behind_the_long_layer_may_have_all_cores():
    scheduler = scheduler_of(25 * MS)
    now_ns = quick_comes(scheduler)
    arrives(scheduler, 2, now_ns, "slow")
    active, patience = scheduler.state.in_flight[2], scheduler._policy._patience
    kept = [patience.kept(scheduler.state, active, active.costs, start, 2, now_ns) for start in (0, 1, 2)]
    assert kept == [1, 1, 0]


def test_a_machine_of_one_core_keeps_none():
    scheduler = scheduler_of(25 * MS, cores=1)
    assert cores_of(arrives(scheduler, 2, quick_comes(scheduler), "slow")) == {2: 1}


def test_a_tenant_that_is_gone_is_not_waited_for():
    scheduler = scheduler_of(25 * MS)
    now_ns = quick_comes(scheduler)
    scheduler._policy.tenant_removed("quick")
    assert cores_of(arrives(scheduler, 2, now_ns, "slow")) == {2: 2}
