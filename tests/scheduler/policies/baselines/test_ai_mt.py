"""AI-MT, as approximated: who runs beside whom."""

import pytest
from scheduler_builders import make_machine, make_query, simple_profile

from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived, StartBlock
from veltair.scheduler.policies.baselines.ai_mt import AiMt
from veltair.scheduler.scheduler import Scheduler
from veltair.types import Layer, ModelProfile, QoSTarget, Tenant


@pytest.fixture
def built():
    """Tenants mem, of two layers of 100 bytes in 10 ns, then two of 10; and cmp, of two layers of 10 bytes."""

    def make(policy="ai-mt"):
        def with_bytes(profile, sizes):
            layers = tuple(Layer(i, f"layer{i}", "generic", (), (), 0, size) for i, size in enumerate(sizes))
            return ModelProfile(profile.model, 1, layers, profile.versions, {}, "")

        row = (10, 8, 8)
        profiles = {
            "mem": [with_bytes(simple_profile(row, row, row, row, model="mem"), (100, 100, 10, 10))],
            "cmp": [with_bytes(simple_profile(row, row, model="cmp"), (10, 10))],
        }
        tenants = [Tenant("mem", "mem", QoSTarget(1000)), Tenant("cmp", "cmp", QoSTarget(1000))]
        return Scheduler(make_machine(3), tenants, profiles, policy, 8)

    return make


def extent(decision):
    assert isinstance(decision, StartBlock)
    return decision.block.query, decision.block.start, decision.block.stop


def test_layers_of_one_kind_are_one_block(built):
    scheduler = built()
    assert [extent(d) for d in scheduler.handle(QueryArrived(0, make_query(1, tenant="mem")))] == [(1, 0, 2)]
    assert [extent(d) for d in scheduler.handle(BlockFinished(20, 1, 2, 20))] == [(1, 2, 4)]
    assert scheduler.handle(BlockFinished(40, 1, 4, 20)) == [FinishQuery(1)]


def test_a_second_memory_bound_block_waits_for_bandwidth(built):
    scheduler = built()
    scheduler.handle(QueryArrived(0, make_query(1, tenant="mem")))  # 10 bytes a ns, which is all the budget
    assert scheduler.handle(QueryArrived(1, make_query(2, 1, "mem"))) == []
    # at its end the one compute-bound part goes on beside the next memory-bound one: 1 + 10 > 10 does not fit
    assert [extent(d) for d in scheduler.handle(BlockFinished(20, 1, 2, 20))] == [(2, 0, 2)]
    wide = built(AiMt(bytes_per_ns=11.0))
    wide.handle(QueryArrived(0, make_query(1, tenant="mem")))
    assert wide.handle(QueryArrived(1, make_query(2, 1, "mem"))) == []
    assert [extent(d) for d in wide.handle(BlockFinished(20, 1, 2, 20))] == [(2, 0, 2), (1, 2, 4)]


def test_the_kind_that_does_not_run_goes_first(built):
    scheduler = built(AiMt(bytes_per_ns=100.0))
    scheduler.state.workers = 1
    scheduler.handle(QueryArrived(0, make_query(1, tenant="mem")))
    scheduler.handle(QueryArrived(1, make_query(2, 1, "mem")))
    scheduler.handle(QueryArrived(2, make_query(3, 2, "cmp")))
    scheduler.state.workers = 3
    # the head of the queue starts first; beside two memory-bound blocks only the compute-bound one is left
    assert [extent(d) for d in scheduler.handle(BlockFinished(20, 1, 2, 20))] == [(2, 0, 2), (1, 2, 4), (3, 0, 2)]
