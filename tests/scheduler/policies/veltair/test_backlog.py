"""The default policy counts its waiting queries by kind, and finds what a walk over all of them finds."""

from math import inf

import pytest
from hypothesis import given
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile
from stories import stories

from veltair.errors import RefusalReason
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.events import QueryArrived, RejectQuery
from veltair.scheduler.policies.veltair.admission import ArrivalCheck, counted_ns
from veltair.scheduler.policies.veltair.backlog import SampleCosts
from veltair.scheduler.policies.veltair.correction import remaining_core_ns
from veltair.scheduler.policies.veltair.sizing import PLANNED
from veltair.scheduler.scheduler import Scheduler


@given(story=stories())
def test_the_backlog_has_every_waiting_query_by_kind(story):
    for scheduler, _, _, _ in story.tell("veltair"):
        waiting = {}
        for active in scheduler.state.waiting.values():
            kind = active.tenant, active.query.priority_level, active.query.batch
            waiting.setdefault(kind, []).append(active.due_ns)
        kinds = scheduler._policy.policy._waiting.backlog.kinds()
        assert {(kind.tenant, kind.level, kind.samples): kind.due_ns for kind in kinds} == {
            kind: sorted(due_ns) for kind, due_ns in waiting.items()
        }


def walked_lacking_ns(check, state, new, rest_ns, now_ns, own):
    """`ArrivalCheck._lacking_ns`, query by query."""
    corrections, work, level = check._corrections, [], new.query.priority_level
    for active in (*state.in_flight.values(), *state.waiting.values()):
        tenant = active.tenant
        if tenant.priority < new.tenant.priority or (active.due_ns <= now_ns and active is not new):
            continue
        if own and tenant is not new.tenant:
            continue
        ranked = tenant is new.tenant and active.query.id in state.waiting  # else only its end says when its turn is
        behind = (active.query.priority_level - level) * ranked
        if behind > 0:
            continue
        core_ns = counted_ns(remaining_core_ns(active, corrections[tenant.name], now_ns), active.avg_cores)
        if active.query.id in state.waiting and tenant.batching:
            samples = check._waiting.batchable.count_samples(tenant)
            least = inf
            for costs in state.costs[tenant.model]:
                if costs.profile.batch > samples or costs.least_rest_ns[SOLO][0] > tenant.qos.latency_ns * PLANNED:
                    break
                least = min(least, costs.rest_on_one_ns[SOLO][0] / costs.profile.batch)
            core_ns = min(core_ns, counted_ns(least * corrections[tenant.name].one_core * active.query.batch, 1))
        work.append((-1 if behind < 0 else active.due_ns, core_ns))
    kept_ns = check._fair.spare_ns(new.tenant, new.qos_ns - rest_ns, now_ns)
    done_ns, worst = now_ns + max(check._reserve.spare_ns(new, rest_ns), kept_ns), 0.0
    for due_ns, core_ns in sorted(work):
        done_ns += core_ns / state.cores
        if due_ns >= new.due_ns:
            worst = max(worst, done_ns - due_ns)
    return worst


@given(story=stories())
def test_the_work_before_a_query_is_that_of_all_queries_one_by_one(story):
    found = ArrivalCheck._lacking_ns

    def compared(check, state, new, rest_ns, now_ns, *, own=False):
        lacking_ns = found(check, state, new, rest_ns, now_ns, own=own)
        if not (state.free and len(state.waiting) == 1 and len(state.in_flight) < state.workers):
            assert lacking_ns == pytest.approx(walked_lacking_ns(check, state, new, rest_ns, now_ns, own), abs=1e-6)
        return lacking_ns

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ArrivalCheck, "_lacking_ns", compared)
        for _ in story.tell("veltair"):
            pass


def test_a_sample_costs_the_least_in_the_batches_that_are_filled_and_in_time():
    profiles = [simple_profile((ns, ns), batch=batch) for batch, ns in ((2, 30), (4, 40), (8, 96), (16, 100))]
    costs = SampleCosts([ProfileCosts(profile, (1.0,), 2) for profile in profiles], within_ns=98)
    assert [costs.least_ns(samples) for samples in (1, 2, 3, 4, 8, 16)] == [inf, 15, 15, 10, 10, 10]


def test_a_query_that_was_due_before_it_came_counts_itself():
    tenant = make_tenant(100)
    scheduler = Scheduler(make_machine(1), [tenant], {"m": [simple_profile((30,))]}, "veltair", workers=2)
    scheduler.handle(QueryArrived(200, make_query(1, 200)))
    [refused] = scheduler.handle(QueryArrived(200, make_query(2, 50)))
    # due at 150, done at 200 + 1.3 x 30
    assert refused == RejectQuery(2, RefusalReason.OVERLOAD)
