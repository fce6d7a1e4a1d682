"""Tenants that come and go while a scheduler runs."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_builders import make_machine, make_profile, make_query, make_tenant, simple_profile

from veltair.errors import ConfigError, InvariantError, ProfileError
from veltair.scheduler.event_log.header import digest_profiles
from veltair.scheduler.event_log.records import dump_decision, dump_event
from veltair.scheduler.event_log.replay import replay
from veltair.scheduler.events import (
    BlockFinished,
    Event,
    FinishQuery,
    QueryArrived,
    RejectQuery,
    StartBlock,
    TenantAdded,
    TenantRemoved,
)
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.scheduler import Scheduler
from veltair.types import QoSTarget, Tenant

PROFILES = [simple_profile((40, 24), (30, 16))]
DIGEST = digest_profiles(PROFILES)


def new_scheduler(policy: str = "veltair-full") -> Scheduler:
    return Scheduler(make_machine(2), [make_tenant(500)], {"m": [simple_profile((30, 16))]}, policy, 2)


def another(name: str, model: str = "n") -> Tenant:
    return Tenant(name, model, QoSTarget(1000))


def added(name: str, time_ns: int = 0) -> TenantAdded:
    return TenantAdded(time_ns, another(name), "/srv/n", DIGEST)


@pytest.mark.parametrize("policy", sorted(POLICIES))
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("acqqf"), st.integers(0, 2), st.integers(1, 60)), max_size=60))
def test_every_query_ends_once_while_tenants_come_and_go(policy: str, steps: list[tuple[str, int, int]]) -> None:
    scheduler, now_ns, number = new_scheduler(policy), 0, 0
    first = next(iter(scheduler.state.tenants))
    active: dict[int, str] = {}  # by query: its tenant
    running: dict[int, StartBlock] = {}
    log: list[str] = []
    events = 0

    def handle(event: Event) -> None:
        nonlocal events
        events += 1
        decisions = scheduler.handle(event)
        log.extend([dump_event(event), *map(dump_decision, decisions)])
        for decision in decisions:
            match decision:
                case StartBlock(block=block, members=members):
                    running[block.query] = decision
                    assert active.keys() >= {block.query, *members}
                case FinishQuery(query=query) | RejectQuery(query=query):
                    del active[query]
        scheduler.check_invariants()

    def finish(query: int) -> None:
        block = running.pop(query).block
        handle(BlockFinished(now_ns, query, block.stop, block.predicted_ns))

    for what, which, more_ns in steps:
        now_ns += more_ns
        name = f"t{which}"
        match what:
            case "a" if name not in scheduler.state.tenants:
                if "n" not in scheduler.state.costs:
                    scheduler.learn_model("n", scheduler.prepare_model("n", PROFILES))
                handle(added(name, now_ns))
            case "c" if name in scheduler.state.tenants and name not in active.values():
                handle(TenantRemoved(now_ns, name))
                assert ("n" in scheduler.state.costs) == any(t.model == "n" for t in scheduler.state.tenants.values())
            case "q":
                number += 1
                name = name if name in scheduler.state.tenants else first
                active[number] = name
                query = make_query(number, now_ns)
                handle(QueryArrived(now_ns, msgspec.structs.replace(query, tenant=name)))
            case "f" if running:
                finish(sorted(running)[which % len(running)])
    while running:
        now_ns += 1
        finish(min(running))
    assert not active
    assert replay(new_scheduler(policy), log, lambda _: PROFILES) == events


def test_a_tenant_leaves_only_without_queries() -> None:
    scheduler = new_scheduler()
    scheduler.learn_model("n", scheduler.prepare_model("n", PROFILES))
    scheduler.handle(added("late"))
    with pytest.raises(InvariantError, match="'late' was added twice"):
        scheduler.handle(added("late"))
    query = msgspec.structs.replace(make_query(1), tenant="late")
    [start] = scheduler.handle(QueryArrived(0, query))
    with pytest.raises(InvariantError, match="'late' still has 1 queries"):
        scheduler.handle(TenantRemoved(1, "late"))
    while isinstance(start, StartBlock):
        [start] = scheduler.handle(BlockFinished(50, 1, start.block.stop, 40))
    scheduler.handle(TenantRemoved(60, "late"))
    with pytest.raises(InvariantError, match="'late' is unknown"):
        scheduler.handle(TenantRemoved(61, "late"))
    with pytest.raises(InvariantError, match="model that was not learned, 'n'"):
        scheduler.handle(added("late"))


def test_a_model_is_learned_once_and_wrong_profiles_change_nothing() -> None:
    scheduler = new_scheduler()
    with pytest.raises(ConfigError, match="profiles of this model already"):
        scheduler.learn_model("m", scheduler.prepare_model("m", PROFILES))
    with pytest.raises(ConfigError, match="ascending batch sizes"):
        scheduler.prepare_model("n", [])
    assert list(scheduler.state.costs) == ["m"]


def test_the_first_model_of_an_empty_scheduler_decides_its_levels() -> None:
    scheduler = Scheduler(make_machine(2), [], {}, "veltair-full", 2)
    assert scheduler.state.grid == (1.0,)
    rows = [[30, 16], [60, 32]]
    profiles = [make_profile([[rows]], levels=(1.0, 1.1))]
    scheduler.learn_model("n", scheduler.prepare_model("n", profiles))
    assert scheduler.state.grid == (1.0, 1.1)
    scheduler.handle(added("late"))
    assert scheduler.handle(QueryArrived(0, msgspec.structs.replace(make_query(1), tenant="late")))


def test_a_log_with_a_model_that_was_loaded_needs_its_profile() -> None:
    log = [dump_event(added("late"))]
    assert replay(new_scheduler(), log, lambda event: PROFILES) == 1
    with pytest.raises(ConfigError, match="n: the log needs its profile"):
        replay(new_scheduler(), log)
    with pytest.raises(ProfileError, match="recorded with another profile"):
        replay(new_scheduler(), log, lambda event: [simple_profile((30, 16))])
