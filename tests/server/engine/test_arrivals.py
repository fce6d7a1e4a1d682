"""Queries that the engine has taken and the scheduler does not know yet."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from veltair.server.engine.arrivals import MOST_WAIT, MOST_WAIT_NS, Arrival, Arrivals
from veltair.server.ipc.messages import InferQuery, TenantSpec

QOS_NS = 10_000_000
TENANTS = [TenantSpec(name, "/", "ab12", QOS_NS * (1 + i), 0.95, 1, batching=True) for i, name in enumerate("abc")]


def query(number: int, tenant: int, arrival_ns: int = 0) -> InferQuery:
    return InferQuery(number, tenant, slot=0, batch=1, arrival_ns=arrival_ns, deadline_ns=None)


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "remove"]), st.integers(0, 2)), max_size=200))
def test_each_tenants_queries_are_taken_in_order_and_the_tenants_in_turn(steps: list[tuple[str, int]]) -> None:
    arrivals = Arrivals(dict(enumerate(TENANTS)))
    expected: dict[int, deque[int]] = {tenant: deque() for tenant in range(3)}
    passed: dict[int, set[int]] = {tenant: set() for tenant in range(3)}  # taken since this tenant waits
    number = 0
    for action, tenant in steps:
        if action == "add":
            number += 1
            arrivals.add(query(number, tenant), lane=tenant)
            expected[tenant].append(number)
        elif action == "remove":
            own = expected[tenant]
            found = arrivals.remove(own[len(own) // 2] if own else 0)
            assert (found.message.query if found else None) == (own[len(own) // 2] if own else None)
            if own:
                del own[len(own) // 2]
        elif any(expected.values()):
            message, lane = arrivals.take()
            taken = message.tenant
            assert lane == taken and message.query == expected[taken].popleft()
            passed[taken].clear()
            for other in range(3):
                if other != taken and expected[other]:
                    assert taken not in passed[other], "a tenant was served twice while another waited"
                    passed[other].add(taken)
        for each in range(3):
            if not expected[each]:
                passed[each].clear()
            assert arrivals.waiting(each) == len(expected[each])
        assert len(arrivals) == sum(map(len, expected.values()))


def test_a_tenant_waits_too_long_once_it_has_more_than_the_engine_decides_in_time() -> None:
    arrivals = Arrivals(dict(enumerate(TENANTS)))
    for number in range(100):
        arrivals.add(query(number, 0), lane=0)
    assert arrivals.too_long_ns(0) == 0  # nothing is known of the engine yet
    for _ in range(500):
        arrivals.decided(queries=16, elapsed_ns=16 * 50_000)
    assert abs(arrivals.too_long_ns(0) - (100 * 50_000 - MOST_WAIT * QOS_NS)) <= 1
    arrivals.add(query(100, 1), lane=0)  # takes half of the engine's time
    assert abs(arrivals.too_long_ns(0) - (2 * 100 * 50_000 - MOST_WAIT * QOS_NS)) <= 1
    assert arrivals.too_long_ns(1) == arrivals.too_long_ns(2) == 0


def test_a_long_target_is_no_reason_to_wait_long_for_a_decision() -> None:
    arrivals = Arrivals({0: TenantSpec("a", "/", "ab12", 10**9, 0.95, 1, batching=True)})
    for number in range(100):
        arrivals.add(query(number, 0), lane=0)
    for _ in range(500):
        arrivals.decided(queries=16, elapsed_ns=16 * 50_000)
    assert abs(arrivals.too_long_ns(0) - (100 * 50_000 - MOST_WAIT_NS)) <= 1


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=60))
def test_a_late_one_takes_the_place_of_its_arrival(queries: list[tuple[int, int]]) -> None:
    arrivals = Arrivals(dict(enumerate(TENANTS)))
    for number, (tenant, arrival_ns) in enumerate(queries):
        arrivals.add(query(number, tenant, arrival_ns), lane=0)
    taken = [arrivals.take().message for _ in range(len(arrivals))]
    for tenant in range(3):
        own = [(at, number) for number, (each, at) in enumerate(queries) if each == tenant]
        assert [(each.arrival_ns, each.query) for each in taken if each.tenant == tenant] == sorted(own)


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 60))
def test_what_is_handed_over_goes_in_the_order_of_take_and_the_rest_stays(tenants: list[int], room: int) -> None:
    arrivals, reference = Arrivals(dict(enumerate(TENANTS))), Arrivals(dict(enumerate(TENANTS)))
    for number, tenant in enumerate(tenants):
        arrivals.add(query(number, tenant), lane=0)
        reference.add(query(number, tenant), lane=0)
    handed: list[int] = []

    def takes(arrival: Arrival) -> bool:
        if len(handed) == room:
            return False
        handed.append(arrival.message.query)
        return True

    assert arrivals.hand_over(takes) == (room >= len(tenants))
    assert handed == [reference.take().message.query for _ in range(len(handed))]
    assert len(arrivals) == len(tenants) - len(handed)
    left = [arrivals.take().message.query for _ in range(len(arrivals))]
    assert left == [reference.take().message.query for _ in range(len(reference))]
    assert sum(arrivals.taken.values()) == len(left)  # what was handed over has not been decided


def test_a_tenant_that_cannot_be_handed_over_holds_up_no_other() -> None:
    arrivals, handed = Arrivals(dict(enumerate(TENANTS))), list[int]()
    for number, tenant in enumerate([0, 0, 1, 2, 1, 2]):
        arrivals.add(query(number, tenant), lane=0)

    def takes(arrival: Arrival) -> bool:
        may = arrival.message.tenant != 0 and arrival.message.query != 5
        handed.extend([arrival.message.query] * may)
        return may

    assert not arrivals.hand_over(takes)
    assert handed == [2, 3, 4]
    assert sorted(arrivals.take().message.query for _ in range(len(arrivals))) == [0, 1, 5]
