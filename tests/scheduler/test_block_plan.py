import pytest
from scheduler_builders import make_machine, make_profile, make_query, make_tenant, simple_profile

from veltair.errors import ConfigError
from veltair.scheduler.block_plan import explain
from veltair.scheduler.events import QueryArrived, StartBlock
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.interference_model import Alone, solo_times
from veltair.simulation.virtual_machine import VirtualMachine

EVEN = (40, 20, 14, 10)
STIFF = (40, 36, 34, 33)


def outline(plan):
    return [(b.start, b.stop, b.cores, b.predicted_ns, b.qos_ns) for b in plan.blocks]


def test_alone():
    plan = explain(simple_profile(EVEN, EVEN, STIFF, EVEN), make_machine(4), qos_ns=100)
    assert (plan.avg_cores, plan.threshold_cores, plan.pivots, plan.level) == (2, 2, (2,), 1.0)
    assert outline(plan) == [(0, 2, 2, 40, 50), (2, 4, 3, 48, 50)]
    assert plan.predicted_ns == 88


@pytest.mark.parametrize("load", [[2], 2, (1, 1)])
def test_load_takes_the_threshold(load):
    plan = explain(simple_profile((40, 18, 12, 10), (40, 27, 20, 15)), make_machine(4), qos_ns=50, load=load)
    assert (plan.avg_cores, plan.threshold_cores, plan.pivots) == (2, 0, (1,))
    assert outline(plan) == [(0, 1, 2, 18, 25), (1, 2, 2, 27, 25)]


def test_the_level_picks_the_versions():
    layers = [[[[20, 20], [80, 80]], [[30, 30], [40, 40]]]] * 2
    made = make_profile(layers, levels=(1.0, 2.0))
    assert [b.versions for b in explain(made, make_machine(2), 1000).blocks] == [(0, 0)]
    plan = explain(made, make_machine(2), 1000, level=7.5)
    assert [b.versions for b in plan.blocks] == [(1, 1)]
    assert (plan.level, plan.predicted_ns) == (2.0, 80)  # no further than was measured


def test_what_cannot_be_in_time_is_capped():
    plan = explain(simple_profile(EVEN, EVEN), make_machine(4), qos_ns=5)
    assert [b.capped for b in plan.blocks] == [True]
    assert plan.blocks[0].cores == 4


def test_the_scheduler_does_as_explained():
    profile = simple_profile(EVEN, STIFF, STIFF, EVEN, (60, 31, 20, 15), STIFF)
    for qos_ns in range(100, 260, 7):
        scheduler = Scheduler(make_machine(4), [make_tenant(qos_ns)], {"m": [profile]}, "veltair-full", 1)
        virtual = VirtualMachine(scheduler, Alone(solo_times(scheduler)))
        virtual.add_event(QueryArrived(0, make_query(1)))
        started = [d.block for _, decisions in virtual.run() for d in decisions if isinstance(d, StartBlock)]
        plan = explain(profile, make_machine(4), qos_ns)
        assert [(b.start, b.stop, b.cores, b.predicted_ns, b.versions) for b in started] == [
            (b.start, b.stop, b.cores, b.predicted_ns, b.versions) for b in plan.blocks
        ]
        assert virtual.ended_ns == {1: plan.predicted_ns}


@pytest.mark.parametrize(
    "wrong", [{"qos_ns": 0}, {"level": 0.9}, {"load": -1}, {"load": [3, -1]}, {"machine": "none"}], ids=str
)
def test_wrong_questions_are_refused(wrong):
    asked = {"machine": make_machine(4), "qos_ns": 100, "level": 1.0, "load": 0} | wrong
    if asked["machine"] == "none":
        asked["machine"] = make_machine()
    with pytest.raises(ConfigError, match="plan: expected"):
        explain(simple_profile(EVEN), **asked)
