"""The share of its spare time that is kept free for each query."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_builders import make_tenant, simple_profile

from veltair.errors import RefusalReason
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.events import BlockFinished, QueryArrived, RejectQuery
from veltair.scheduler.policies.veltair.reserve import LATE_SHARE, MOST, STEP, Reserve
from veltair.types import Query

QOS_NS = 1000


def query(tenant):
    costs = ProfileCosts(simple_profile((30,)), (1.0,), 1)
    return ActiveQuery(Query(1, tenant.name, 0), tenant, costs, QOS_NS, due_ns=QOS_NS, avg_cores=1)


def test_it_grows_with_each_that_is_late_and_shrinks_with_the_others():
    reserve, active = Reserve(), query(make_tenant(QOS_NS))
    late_share = LATE_SHARE * (1 - active.tenant.qos.percentile)
    assert reserve.spare_ns(active, rest_ns=200) == 0
    reserve.query_done(active, QOS_NS)  # in time
    assert reserve.spare_ns(active, rest_ns=200) == 0
    reserve.query_done(active, QOS_NS + 1)
    assert reserve.spare_ns(active, rest_ns=200) == pytest.approx(STEP * 800)
    for earlier_ns in range(round((1 - late_share) / late_share)):
        reserve.query_done(active, QOS_NS - earlier_ns)
    assert reserve.spare_ns(active, rest_ns=200) == pytest.approx(0)
    for later_ns in range(1000):
        reserve.query_done(active, QOS_NS + 1 + later_ns)
    assert reserve.spare_ns(active, rest_ns=200) == pytest.approx(MOST * 800)


def test_queries_that_end_at_once_are_one_batch_and_count_as_one():
    reserve, active = Reserve(), query(make_tenant(QOS_NS))
    for _ in range(100):
        reserve.query_done(active, QOS_NS + 1)
    assert reserve.spare_ns(active, rest_ns=200) == pytest.approx(STEP * 800)


@given(st.lists(st.integers(QOS_NS - 2, QOS_NS + 2), max_size=300))
def test_it_is_a_share(ends):
    reserve, active = Reserve(), query(make_tenant(QOS_NS))
    for end_ns in ends:
        reserve.query_done(active, end_ns)
        assert 0 <= reserve.spare_ns(active, rest_ns=0) <= MOST * QOS_NS


def test_a_tenant_whose_queries_end_late_admits_fewer(build):
    scheduler = build(("a", 500, 1, 1))
    assert [len(scheduler.handle(QueryArrived(0, Query(id, "a", 0)))) for id in (1, 2, 3)] == [1, 0, 0]
    scheduler.handle(BlockFinished(100, 1, 1, 100))
    scheduler.handle(BlockFinished(200, 2, 1, 100))
    scheduler.handle(BlockFinished(501, 3, 1, 301))  # late; the correction knows the blocks as slower from here on
    begin_ns = 1000
    scheduler.handle(QueryArrived(begin_ns, Query(4, "a", begin_ns)))
    reserve = scheduler._policy._reserve
    assert reserve._shares["a"] == STEP
    assert scheduler.handle(QueryArrived(begin_ns, Query(5, "a", begin_ns))) == []
    reserve._shares["a"] = MOST
    (refused,) = scheduler.handle(QueryArrived(begin_ns, Query(6, "a", begin_ns)))
    assert isinstance(refused, RejectQuery) and refused.reason is RefusalReason.OVERLOAD
    reserve._shares["a"] = 0.0
    assert scheduler.handle(QueryArrived(begin_ns, Query(7, "a", begin_ns))) == []
