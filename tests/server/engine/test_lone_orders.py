"""`LoneOrders`: which queries may wait for each other, and with what orders a worker is lent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from veltair.server.engine.in_flight_batch import InFlightBatch
from veltair.server.engine.lending.lone_orders import MOST_WAIT_NS, SHORT_NS, WAITS, LoneOrders
from veltair.server.ipc.messages import InferQuery, TenantSpec
from veltair.server.ipc.status_records import BlockRecord, CoreChange
from veltair.server.ipc.tenant_share import TenantShare
from veltair.types import LayerBlock

MS = 1_000_000
QUICK, ALIKE, SLOW = 0, 1, 2  # tenants


def spec(name: str, qos_ms: int = 10, priority: int = 1, weight: int = 1) -> TenantSpec:
    share = TenantShare(weight=weight)
    return TenantSpec(name, "/", "ab12", qos_ms * MS, 0.95, priority, batching=True, share=share)


def query(tenant: int, **how: Any) -> InferQuery:
    return msgspec.structs.replace(InferQuery(1, tenant, 0, 1, arrival_ns=0, deadline_ns=None), **how)


@dataclass
class Pending:
    message: InferQuery
    lane: int | None = 0
    cancelled: bool = False


@dataclass
class Ended:
    """What `LoneOrders` reads of a batch that has ended."""

    queries: list[Pending]
    blocks: list[BlockRecord]
    started: Any = field(init=False)

    def __post_init__(self) -> None:
        self.started = msgspec.defstruct("Start", ["block"])(msgspec.defstruct("Block", ["predicted_ns"])(5))


def ended(tenant: int, elapsed_ns: int, moves: tuple[CoreChange, ...] = (), **how: Any) -> InFlightBatch:
    block = BlockRecord(1, "a", 0, 2, (3, 4), (0, 1), 100, 100 + elapsed_ns, False, 1.0, moves)
    return cast(InFlightBatch, Ended([Pending(query(tenant), **how)], [block]))


def lone_orders(tenants: list[TenantSpec], refuses: bool = True, **predicted_ns: int) -> LoneOrders:
    """By their profiles they take so long; others cannot run at all."""

    def lone_block(name: str, batch: int) -> LayerBlock | None:
        return LayerBlock(0, 0, 2, (5, 6), 1, predicted_ns[name] * batch) if name in predicted_ns else None

    return LoneOrders(dict(enumerate(tenants)), lone_block, cores=(7,), refuses=refuses)


def learnt(tenants: list[TenantSpec], **elapsed_ns: int) -> LoneOrders:
    orders = lone_orders(tenants)
    for name, each_ns in elapsed_ns.items():
        orders.learn(ended([spec.name for spec in tenants].index(name), each_ns), met=False)
    return orders


def test_short_queries_wait_on_one_core_and_others_get_what_they_got() -> None:
    orders = learnt([spec("quick"), spec("alike", qos_ms=20), spec("slow")], quick=40_000, alike=90_000, slow=5 * MS)
    lent = orders.to_lend()
    wait_ns = int(WAITS * 10 * MS / 2)  # by the least target, whoever waits
    for tenant in (QUICK, ALIKE):
        order, level, predicted_ns = lent[tenant, 1]
        assert (order.versions, order.cores, order.wait_ns, level) == ((3, 4), (0,), wait_ns, 1.0)
        assert predicted_ns == 5  # what the scheduler reckons with
    slow, _, predicted_ns = lent[SLOW, 1]
    assert (slow.cores, slow.wait_ns, slow.late_us, predicted_ns) == ((0, 1), 0, 0, 5)
    assert [lent[tenant, 1].order.late_us for tenant in (QUICK, ALIKE)] == [8_000, 16_000]  # each by its own target
    assert orders.longest_ns(SLOW) == 0  # no query of it waits for the lent worker
    assert abs(orders.longest_ns(QUICK) - 40_000) < 4_000


def test_nobody_waits_longer_than_its_target_or_a_tenth_of_a_second() -> None:
    assert learnt([spec("a", qos_ms=60_000)], a=1).to_lend()[0, 1].order.wait_ns == MOST_WAIT_NS


def test_queries_of_another_priority_do_not_wait_for_each_other() -> None:
    orders = learnt([spec("quick"), spec("other", priority=2)], quick=40_000)
    assert orders.may_wait(query(0))
    orders.learn(ended(1, 40_000), met=False)
    assert not orders.may_wait(query(0)) and not orders.may_wait(query(1))
    assert {lone.order.wait_ns for lone in orders.to_lend().values()} == {0}


def test_tenants_have_parts_of_the_line_by_their_weights() -> None:
    lent = learnt([spec("light"), spec("heavy", weight=3)], light=40_000, heavy=40_000).to_lend()
    assert [lent[tenant, 1].order.wait_ns for tenant in (0, 1)] == [1_250_000, 3_750_000]


@pytest.mark.parametrize(("qos_ms", "refuses"), [(10, True), (20, True), (21, False), (60_000, False)])
def test_who_can_wait_longer_than_the_line_is_not_refused_for_its_length(qos_ms: int, refuses: bool) -> None:
    lent = learnt([spec("quick"), spec("other", qos_ms=qos_ms)], quick=40_000, other=40_000).to_lend()
    assert [bool(lent[tenant, 1].order.late_us) for tenant in (0, 1)] == [True, refuses]
    alone = learnt([spec("other", qos_ms=qos_ms)], other=40_000).to_lend()
    assert bool(alone[0, 1].order.late_us) == (qos_ms < 1_000)


def test_only_a_policy_that_refuses_has_late_queries_refused() -> None:
    orders = lone_orders([spec("a")], refuses=False)
    orders.learn(ended(0, 40_000), met=False)
    order = orders.to_lend()[0, 1].order
    assert (order.wait_ns, order.late_us) == (5 * MS, 0)


@pytest.mark.parametrize("how", [{"traced": True}, {"bucket": 1}, {"priority_level": 1}, {"batch": 2}, {"tenant": 1}])
def test_queries_that_are_told_apart_do_not_wait(how: dict[str, Any]) -> None:
    orders = learnt([spec("quick"), spec("b")], quick=40_000)
    assert orders.may_wait(query(0)) and not orders.may_wait(query(**{"tenant": 0, **how}))


def test_what_is_short_follows_what_queries_take_and_not_the_few_that_lost_their_core() -> None:
    orders = learnt([spec("quick")], quick=40_000)
    for turn in range(400):
        orders.took((0, 1), 50 * MS if turn % 10 == 0 else 40_000)
    assert orders.may_wait(query(0))
    for _ in range(400):
        orders.took((0, 1), 2 * SHORT_NS)
    assert not orders.may_wait(query(0))
    for _ in range(400):
        orders.took((0, 1), SHORT_NS // 2)
    assert orders.may_wait(query(0))


def test_it_learns_from_those_alone_that_the_like_can_follow() -> None:
    tenants = [spec("a")]
    assert not learnt(tenants)
    for batch in (
        ended(0, 40_000, lane=None),
        ended(0, 40_000, cancelled=True),
        ended(0, 40_000, moves=(CoreChange(1, (0,), 120),)),
    ):
        orders = lone_orders(tenants)
        for met in (False, True):
            orders.learn(batch, met=met)
            assert not orders
    moved = lone_orders(tenants)
    moved.learn(ended(0, 5 * MS, moves=(CoreChange(0, (0,), 120),)), met=False)  # before it began
    assert moved.to_lend()[0, 1].order.cores == (0,)
    moved.learn(ended(0, 5 * MS, moves=(CoreChange(1, (1,), 120),)), met=False)  # the last one took others on the way
    assert not moved
    again = learnt(tenants, a=40_000)
    again.forget()
    assert not again and not again.may_wait(query(0))


def test_short_queries_are_learned_from_batches_too() -> None:
    orders = lone_orders([spec("a")])
    orders.learn(ended(0, SHORT_NS + 1), met=True)
    assert not orders
    batch = ended(0, SHORT_NS)
    batch.queries.append(cast(Any, Pending(query(0, batch=3))))
    orders.learn(batch, met=True)
    assert orders.may_wait(query(0), query(0, batch=3)) and not orders.may_wait(query(0, batch=2))
    before = orders.to_lend()
    other = ended(0, 5)
    other.blocks[0] = msgspec.structs.replace(other.blocks[0], cores=(1,))
    for met in (True, False):
        orders.learn(other, met=met)  # what is known stays, and with it what workers have prepared
        assert orders.to_lend() == before


def test_what_took_long_at_first_is_short_once_batches_of_it_are() -> None:
    orders = lone_orders([spec("a")])
    orders.learn(ended(0, 2 * SHORT_NS), met=False)
    for _ in range(40):
        orders.learn(ended(0, 10 * SHORT_NS), met=True)  # others may have slowed it down
        orders.learn(ended(0, SHORT_NS // 2), met=True)
    assert orders.may_wait(query(0))


def test_what_is_short_by_its_profile_has_an_order_before_it_has_run() -> None:
    orders = lone_orders([spec("quick"), spec("slow"), spec("unknown")], quick=40_000, slow=SHORT_NS + 1)
    for tenant in (0, 1, 2):
        orders.foresee(query(tenant))
    orders.foresee(query(0, batch=100))
    [(key, (order, level, predicted_ns))] = orders.to_lend().items()
    assert (key, order.versions, order.cores, level, predicted_ns) == ((0, 1), (5, 6), (7,), 1.0, 40_000)
    assert orders.may_wait(query(0)) and orders.longest_ns(0) == 40_000


def test_a_query_of_a_tenant_that_is_gone_is_not_foreseen() -> None:
    orders = lone_orders([spec("quick")], quick=40_000)
    orders.foresee(query(5))
    assert not orders


def test_what_was_seen_counts_for_more_than_its_profile() -> None:
    orders = lone_orders([spec("quick"), spec("other")], quick=40_000, other=40_000)
    orders.learn(ended(0, 5 * MS), met=False)
    orders.foresee(query(0))
    orders.foresee(query(1))
    for _ in range(400):
        orders.took((1, 1), 5 * MS)
    orders.foresee(query(1))
    assert not orders.may_wait(query(0)) and not orders.may_wait(query(1))
    assert orders.to_lend()[0, 1].order.versions == (3, 4)
    orders.forget()
    orders.foresee(query(0))
    assert orders.may_wait(query(0))
