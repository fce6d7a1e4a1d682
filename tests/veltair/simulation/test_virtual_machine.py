"""The virtual machine with interference that change while blocks run."""

from __future__ import annotations

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile

from veltair.scheduler.events import BlockFinished, BlockGrown, CountersSampled, QueryArrived
from veltair.scheduler.policies.baselines.fixed_blocks import FixedBlocks
from veltair.scheduler.policies.serving_order import ServingOrder
from veltair.scheduler.scheduler import Scheduler
from veltair.simulation.interference_model import Alone, solo_times
from veltair.simulation.virtual_machine import GrowthInsideLayers, VirtualMachine
from veltair.types import CounterSample

EVEN = (90, 45, 30, 20)
SLOW = (900, 450, 300, 200)


class Crowded:
    """Every layer takes its time on one core times the number of blocks that run; growing costs 7 ns."""

    def __init__(self, layer_ns):
        self.layer_ns = layer_ns
        self.running = {}
        self.stirred = False

    def enter(self, block, core_set, profile, grown):
        self.running[block.query] = block
        self.stirred = True
        return 7.0 if grown else 0.0

    def leave(self, query):
        del self.running[query]
        self.stirred = True

    def changed(self):
        if self.stirred:
            for query, block in self.running.items():
                step = self.layer_ns * len(self.running)
                yield query, [step * i for i in range(block.stop - block.start + 1)]
        self.stirred = False


def conflicting():
    """Blocks of six layers, of which the first starts with what is free, too."""
    return FixedBlocks(6, order=ServingOrder(dispatch="any-core"))


def ends(scheduler, interference, *arrivals):
    virtual = VirtualMachine(scheduler, interference)
    for query in arrivals:
        virtual.add_event(QueryArrived(query.arrival_ns, query))
    told = [(event, decisions) for event, decisions in virtual.run()]
    return virtual.ended_ns, told


def test_what_is_left_goes_at_the_new_speed():
    scheduler = Scheduler(make_machine(4), [make_tenant(10_000)], {"m": [simple_profile(EVEN, EVEN)]}, "fcfs", 4)
    done, _ = ends(scheduler, Crowded(100), make_query(0, 0), make_query(1, 50), make_query(2, 1000))
    # 0 runs half a layer alone, 1.5 at half speed; 1 then has half a layer left, alone
    assert done == {0: 350, 1: 400, 2: 1200}


def test_elapsed_time_is_what_the_block_really_took():
    scheduler = Scheduler(make_machine(4), [make_tenant(10_000)], {"m": [simple_profile(EVEN, EVEN)]}, "fcfs", 4)
    _, told = ends(scheduler, Crowded(100), make_query(0, 0), make_query(1, 50))
    finished = [(event.query, event.elapsed_ns) for event, _ in told if isinstance(event, BlockFinished)]
    assert finished == [(0, 350), (1, 350)]


def test_a_block_that_grows_stands_still_while_its_cores_wake():
    tenants = [make_tenant(100), make_tenant(75, "b")]  # on 3 and on 4 cores in time
    scheduler = Scheduler(make_machine(4), tenants, {"m": [simple_profile(EVEN, EVEN, EVEN)]}, conflicting(), 2)
    done, told = ends(scheduler, Crowded(10), make_query(0, 0), make_query(1, 15, "b"))
    grown = [(event.time_ns, event.layer, event.core_set) for event, _ in told if isinstance(event, BlockGrown)]
    # 1 has done a layer and a half when 0 ends at 45, and grows at the end of that layer
    assert grown == [(50, 2, (0, 1, 2, 3))]
    assert done == {0: 45, 1: 50 + 7 + 10}


def test_where_blocks_grow_inside_layers_the_rest_of_the_layer_goes_on_more_cores():
    tenants, profiles = [make_tenant(100), make_tenant(75, "b")], {"m": [simple_profile(EVEN, EVEN, EVEN)]}
    scheduler = Scheduler(make_machine(4), tenants, profiles, conflicting(), 2, growth=GrowthInsideLayers())
    done, told = ends(scheduler, Crowded(10), make_query(0, 0), make_query(1, 15, "b"))
    grown = [(event.time_ns, event.layer, event.core_set) for event, _ in told if isinstance(event, BlockGrown)]
    # 1 has done a layer and a half when 0 ends at 45, waits for its cores, and does the other half and a layer
    assert grown == [(45, 1, (0, 1, 2, 3))]
    assert done == {0: 45, 1: 45 + 7 + 5 + 10}


@pytest.mark.parametrize(("wakes_once", "ends_ns"), [(True, 304), (False, 311)])
def test_a_layer_in_conflict_pays_once_or_at_each_growth(wakes_once, ends_ns):
    tenants = [make_tenant(450), make_tenant(900, "b"), make_tenant(200, "c")]  # on 2, 1 and 4 cores in time
    growth = GrowthInsideLayers(wakes_once)
    profiles = {"m": [simple_profile(SLOW)]}
    scheduler = Scheduler(make_machine(4), tenants, profiles, conflicting(), 3, growth=growth)
    done, told = ends(scheduler, Crowded(100), make_query(0), make_query(1, 10, "b"), make_query(2, 30, "c"))
    grown = [(event.time_ns, event.layer, event.core_set) for event, _ in told if isinstance(event, BlockGrown)]
    assert grown == [(270, 0, (0, 1, 3)), (290, 0, (0, 1, 2, 3))]
    # At 270 four fifths of the layer are done. The rest waits for cores until 277, goes at half speed until 290, and
    # has 13.5 ns to go alone, for which it waits again or not.
    assert done == {0: 270, 1: 290, 2: ends_ns}


def test_each_layer_in_conflict_pays():
    tenants = [make_tenant(450), make_tenant(1800, "b", "n"), make_tenant(400, "c", "n")]  # on 2, 1 and 4 cores in time
    profiles = {"m": [simple_profile(SLOW)], "n": [simple_profile(SLOW, SLOW, model="n")]}
    scheduler = Scheduler(make_machine(4), tenants, profiles, conflicting(), 3, growth=GrowthInsideLayers())
    done, told = ends(scheduler, Crowded(100), make_query(0), make_query(1, 10, "b"), make_query(2, 30, "c"))
    grown = [(event.time_ns, event.layer) for event, _ in told if isinstance(event, BlockGrown)]
    # the first layer ends at 277 + 40, beside query 1; at 490 the second has 13.5 ns to go alone, and waits as well
    assert grown == [(270, 0), (490, 1)]
    assert done == {0: 270, 1: 490, 2: 490 + 7 + 14}


def test_readings_end_with_the_work():
    scheduler = Scheduler(make_machine(4), [make_tenant(10_000)], {"m": [simple_profile(EVEN, EVEN)]}, "fcfs", 4)
    virtual = VirtualMachine(scheduler, Alone(solo_times(scheduler)))
    virtual.add_event(QueryArrived(0, make_query(0)))
    virtual.call_every(50, lambda now_ns: CountersSampled(now_ns, CounterSample(now_ns, 50, 10, 5, "test")))
    read = [event.time_ns for event, _ in virtual.run() if isinstance(event, CountersSampled)]
    assert read == [50, 100, 150, 200]  # 180 ns of work


def test_errands_are_done_one_after_another_beside_the_blocks():
    scheduler = Scheduler(make_machine(4), [make_tenant(10_000)], {"m": [simple_profile(EVEN, EVEN)]}, "fcfs", 4)
    virtual = VirtualMachine(scheduler, Alone(solo_times(scheduler)), dispatch_ns=5)
    done = []
    virtual.call_at(
        10, lambda _: virtual.add_front_end_work(40, lambda now_ns: QueryArrived(now_ns, make_query(0, now_ns)))
    )
    virtual.call_at(20, lambda _: virtual.add_front_end_work(7, done.append))
    elapsed = [event.elapsed_ns for event, _ in virtual.run() if isinstance(event, BlockFinished)]
    assert done == [57]  # 40 ns from 10 on, and 7
    assert virtual.ended_ns == {0: 50 + 5 + 180}
    assert elapsed == [180]  # what a worker measures


def test_threads_wake_before_the_clock_of_a_block_starts():
    class Waking(Alone):
        def enter(self, block, core_set, profile, grown):
            return super().enter(block, core_set, profile, grown) + 30.0

    scheduler = Scheduler(make_machine(4), [make_tenant(10_000)], {"m": [simple_profile(EVEN, EVEN)]}, "fcfs", 4)
    virtual = VirtualMachine(scheduler, Waking(solo_times(scheduler)))
    virtual.add_event(QueryArrived(0, make_query(0)))
    elapsed = [event.elapsed_ns for event, _ in virtual.run() if isinstance(event, BlockFinished)]
    assert virtual.ended_ns == {0: 30 + 180}
    assert elapsed == [180]  # so that nobody takes the waking for interference
