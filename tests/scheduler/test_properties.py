"""What holds for any profile, load and order of events, on a virtual machine that carries the decisions out."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stories import TOO_LARGE, Claiming, stories

from veltair.scheduler.blocks import threshold
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.event_log.records import dump_decision, dump_event, load_event
from veltair.scheduler.event_log.replay import replay
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    RejectQuery,
    StartBlock,
    StopBlock,
    WorkersChanged,
)
from veltair.scheduler.policies.baselines import parties
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.policies.veltair.correction import remaining_ns
from veltair.scheduler.scheduler import Scheduler
from veltair.types import LayerBlock

EXAMPLES = 50  # of each property under each policy

# What leaves no core idle that somebody could use. The others hold back: for a core count or a partition of their
# own, for who owns the machine, or for the memory.
WORK_CONSERVING = {"veltair"}
BLOCK_WISE = {"veltair-full", "veltair-as", "veltair-ac", "layerwise", "block-6", "block-11"}  # to those in flight
REFUSING = {"clockwork", "veltair"}
FIRST_COME = {"fcfs", "layerwise", "block-6", "block-11", "veltair-ac", "veltair-full", "veltair-as"}


@pytest.fixture(params=sorted(POLICIES), scope="session")
def policy(request):
    return request.param


class Watch:
    """Follows events and decisions without looking into the scheduler."""

    def __init__(self, story):
        self.cores = set(story.machine.cores)
        self.workers = story.workers
        self.held: dict[int, tuple[int, ...]] = {}  # query -> core set
        self.blocks: dict[int, LayerBlock] = {}
        self.covered: dict[int, list[tuple[int, int]]] = defaultdict(list)  # query -> layers run, in pieces
        self.in_flight: set[int] = set()  # batches by their leaders
        self.leader: dict[int, int] = {}  # of the members of batches
        self.ended: dict[int, str] = {}

    def end(self, query, how):
        assert query not in self.ended, f"query {query} ended twice"
        self.ended[query] = how
        self.in_flight.discard(self.leader.get(query, query))

    def batch(self, leader):
        return [leader, *(member for member, led_by in self.leader.items() if led_by == leader)]

    def see_cancelled(self, cancelled):
        """Those go without a word; a batch goes on while others wait for it."""
        self.in_flight -= {leader for leader in self.in_flight if cancelled.issuperset(self.batch(leader))}

    def see_event(self, event, outcome):
        match event:
            case BlockFinished(query=query, stop=stop):
                del self.held[query]
                block = self.blocks.pop(query)
                self.covered[query].append((block.start, stop))
            case BlockFailed(query=query):
                self.held.pop(query, None)
                self.blocks.pop(query, None)
                for each in self.batch(query):
                    if outcome[each] != "cancelled":
                        self.end(each, "failed")
            case BlockGrown(query=query, core_set=core_set):
                assert set(core_set) <= set(self.held[query])
            case WorkersChanged(workers=workers):
                self.workers = workers

    def see_decision(self, decision):
        match decision:
            case StartBlock(block=block, core_set=core_set, conflict=conflict, members=members):
                assert block.query not in self.held and block.query not in self.ended
                if block.query not in self.in_flight:
                    assert len(self.in_flight) < self.workers
                    self.in_flight.add(block.query)
                    self.leader |= dict.fromkeys(members, block.query)
                    members = ()
                assert not members
                reached = self.covered[block.query][-1][1] if self.covered[block.query] else 0
                assert block.start == reached < block.stop
                assert len(block.versions) == block.stop - block.start
                assert 0 < len(core_set) <= block.cores and conflict is (len(core_set) < block.cores)
                self.held[block.query], self.blocks[block.query] = core_set, block
            case GrowBlock(query=query, core_set=core_set):
                assert set(core_set) > set(self.held[query])
                assert len(core_set) <= self.blocks[query].cores
                self.held[query] = core_set
            case FinishQuery(query=query):
                self.end(query, "finished")
            case RejectQuery(query=query):
                self.end(query, "rejected")
        held = [core for core_set in self.held.values() for core in core_set]
        assert len(held) == len(set(held)) and set(held) <= self.cores


@settings(max_examples=EXAMPLES)
@given(story=stories(), claims=st.booleans())
def test_every_query_ends_once_and_runs_every_layer_once(policy, story, claims):
    watch, make = Watch(story), Claiming if claims and POLICIES[policy]().starts_unasked else Scheduler
    for scheduler, virtual, event, decisions in story.tell(policy, make):
        watch.see_event(event, virtual.outcome)
        watch.see_cancelled({query for query, how in virtual.outcome.items() if how == "cancelled"})
        for decision in decisions:
            watch.see_decision(decision)
        scheduler.check_invariants()
    arrived = {event.query.id: event.query for event in story.outside if isinstance(event, QueryArrived)}
    assert virtual.outcome.keys() == arrived.keys()
    assert not watch.held and not watch.in_flight
    stats = scheduler.stats()
    assert (stats.in_flight, stats.running, stats.cores_in_use, sum(stats.waiting.values())) == (0, 0, 0, 0)
    for query, how in virtual.outcome.items():
        assert watch.ended.get(query, "cancelled") == how
        if policy not in REFUSING or arrived[query].batch == TOO_LARGE:
            assert (how == "rejected") is (arrived[query].batch == TOO_LARGE)
        leader = watch.leader.get(query, query)
        assert arrived[query].tenant == arrived[leader].tenant
        assert sum(arrived[each].batch for each in watch.batch(leader)) <= 8 or arrived[query].batch == TOO_LARGE
        pieces = [piece for piece in watch.covered[leader] if piece[0] < piece[1]]
        if how == "finished":
            model = arrived[query].tenant.removeprefix("t-")
            layers = len(story.profiles[model][0].layers)
            assert [start for start, _ in pieces] == [0, *(stop for _, stop in pieces[:-1])]
            assert pieces[-1][1] == layers


@settings(max_examples=EXAMPLES)
@given(story=stories())
def test_nothing_that_could_run_is_left_waiting(policy, story):
    for scheduler, _, event, _ in story.tell(policy):
        state = scheduler.state
        ready = [active for active in state.in_flight.values() if active.run is None]
        if (head := state.head()) is not None:
            ready.append(head)
        if policy == "fcfs":
            assert all(active.avg_cores > state.free for active in ready[:1])
        elif policy not in WORK_CONSERVING | BLOCK_WISE:
            assert not ready or any(active.run for active in state.in_flight.values())
        elif state.free:
            assert not ready or (policy in BLOCK_WISE and ready == [state.head()] and state.running_blocks)
            now_ns = event.time_ns
            in_flight = list(state.in_flight.values())
            assert not any(active.missing_cores(now_ns) for active in in_flight)


@pytest.mark.parametrize("first_come", sorted(FIRST_COME))
@settings(max_examples=EXAMPLES)
@given(story=stories())
def test_a_query_starts_at_the_latest_when_those_before_it_have_ended(first_come, story):
    """The bound on starvation: none starts before one that came earlier, and none waits while nobody runs."""
    started: set[int] = set()
    for scheduler, _, _, decisions in story.tell(first_come):
        for decision in decisions:
            if isinstance(decision, StartBlock):
                started.add(decision.block.query)
        state = scheduler.state
        assert not state.waiting or not started or min(state.waiting) > max(started)
        assert not state.waiting or not state.workers or state.in_flight


@settings(max_examples=EXAMPLES)
@given(story=stories())
def test_clockwork_starts_what_can_be_in_time(story):
    started: set[int] = set()
    for scheduler, _, event, decisions in story.tell("clockwork"):
        for decision in decisions:
            if isinstance(decision, StartBlock) and decision.block.query not in started:
                active = scheduler.state.in_flight[decision.block.query]
                assert event.time_ns + active.costs.least_rest_ns[SOLO][0] <= active.due_ns
                started.add(decision.block.query)


@settings(max_examples=6 * EXAMPLES)
@given(story=stories())
def test_what_waits_under_veltair_is_not_overdue(story):
    """The bound on starvation: a query starts by its latest start or is refused then, except for those that cannot hold
    their target even alone, and for one in nobody's way."""
    late, busy = set(), False
    for scheduler, _, event, _ in story.tell("veltair"):
        state, policy = scheduler.state, scheduler._policy.policy
        starts_ns, queues = policy._waiting.latest_starts(state), policy._waiting.late
        now_late = {active.query.id for tenant in state.tenants.values() for active in queues.queue(tenant)}
        assert starts_ns.keys() | now_late == state.waiting.keys()
        assert all(latest_ns >= event.time_ns for id, latest_ns in starts_ns.items() if id not in now_late)
        for id in now_late - late:
            it = state.waiting[id]
            if event.time_ns > it.query.arrival_ns:
                assert len(state.waiting) == 1 and not state.in_flight
            elif busy is bool(state.in_flight):
                assert remaining_ns(state, it, policy._corrections[it.tenant.name]) > it.qos_ns
        late, busy = now_late, bool(state.in_flight)


@settings(max_examples=4 * EXAMPLES)
@given(story=stories())
def test_no_query_starts_before_one_of_its_tenant_with_a_higher_priority(story):
    """Of those that can be in time, alone or as members of a batch."""
    started: set[int] = set()
    for scheduler, _, _, decisions in story.tell("veltair"):
        state, policy = scheduler.state, scheduler._policy.policy
        timely = [state.waiting[id].query for id in policy._waiting.latest_starts(state)]
        for decision in decisions:
            if not isinstance(decision, StartBlock) or decision.block.query in started:
                continue
            started |= {decision.block.query, *decision.members}
            leader = state.in_flight[decision.block.query]
            for each in (leader.query, *(member.query for member in leader.members)):
                waiting = [query.priority_level for query in timely if query.tenant == each.tenant]
                assert each.priority_level <= min(waiting, default=each.priority_level)


@settings(max_examples=2 * EXAMPLES)
@given(story=stories())
def test_no_query_makes_room_twice_under_veltair(story):
    """So that two cannot stop each other without end."""
    arrived = stopped = 0
    for scheduler, _, event, decisions in story.tell("veltair"):
        arrived += isinstance(event, QueryArrived)
        stopped += sum(isinstance(decision, StopBlock) for decision in decisions)
        state, checked = scheduler.state, scheduler._policy
        assert stopped - checked.stopped <= arrived
        active = state.waiting.keys() | state.in_flight.keys()
        assert checked.policy._preemption.made_room <= active  # what has ended is forgotten


@given(story=stories())
def test_one_query_owns_the_machine_under_prema(story):
    for scheduler, _, _, _ in story.tell("prema"):
        assert sum(active.run is not None for active in scheduler.state.in_flight.values()) <= 1


@settings(max_examples=EXAMPLES)
@given(story=stories())
def test_partitions_hold_under_parties(story):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parties, "POLL_NS", 20)  # a story's queries take a few hundred ns
        for scheduler, _, _, _ in story.tell("parties"):
            partitions = scheduler._policy.policy.partitions
            if len(partitions) <= scheduler.state.cores:
                used = sum(partition.cores for partition in partitions.values()) + scheduler._policy.policy.spare
                assert used == (scheduler.state.cores if partitions else 0)
            assert all(partition.cores >= 1 for partition in partitions.values())


@given(story=stories())
def test_averages_and_thresholds_of_the_active_fit_the_machine(story):
    for scheduler, _, _, _ in story.tell("veltair-full"):
        state = scheduler.state
        active_queries = [*state.waiting.values(), *state.in_flight.values()]
        averages = [active.avg_cores for active in active_queries]
        assert all(1 <= avg <= state.cores for avg in averages)
        if averages and sum(averages) <= state.cores:
            extra = [threshold(avg, state.total_avg, state.cores) for avg in averages]
            assert sum(averages) + sum(extra) <= state.cores


@settings(max_examples=EXAMPLES)
@given(story=stories())
def test_a_recorded_log_gives_the_same_decisions_again(policy, story):
    log, events, counted = [], [], 0
    for _, _, event, decisions in story.tell(policy):
        events.append((event, decisions))
        log += [dump_event(event), *map(dump_decision, decisions)]
        counted += 1
    assert replay(story.scheduler(policy), log) == counted
    again = story.scheduler(policy)
    for event, decisions in events:
        assert load_event(dump_event(event)) == event
        assert again.handle(event) == decisions
