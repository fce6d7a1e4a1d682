"""How large the next block is under the default policy: its layers, its cores and its code versions."""

from __future__ import annotations

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.blocks import Budget, form_block, threshold, with_short_rest
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.batching import Batch
from veltair.scheduler.policies.veltair.contention import Contention
from veltair.scheduler.policies.veltair.correction import Correction
from veltair.scheduler.policies.veltair.patience import Patience
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start
from veltair.types import CoreSet

PLANNED = 0.85  # of the time left: the rest is for neighbours that come meanwhile
WORTH = 1.8  # cores x time that several cores may take, over what one takes
WORTH_CONTENDED = 1.2  # the same while queries meet often


def size_block(
    state: SchedulerState,
    active: ActiveQuery,
    batch: Batch | None,
    correction: Correction,
    contention: Contention,
    patience: Patience,
    avoid: CoreSet,
    now_ns: int,
) -> Start:
    """The start of the query's next block, as the leader of `batch` if there is one.

    One core where that is in time, else the cores that VELTAIR's blocks get; while nobody else wants cores, all idle
    ones that pay, which are fewer while queries meet often (`preemption` takes them back), and without those that are
    kept from long layers (`patience`); one that is late anyway gets what it needs on average. Versions are those of the
    level. Cores to `avoid` are taken last.
    """
    members: tuple[ActiveQuery, ...] = ()
    costs, due_ns = active.costs, active.due_ns
    if batch is not None:
        members, costs, due_ns = batch
    start = active.next_layer
    level = state.next_level(now_ns)
    left_ns = due_ns - now_ns
    slack_ns = max(0, left_ns) * PLANNED
    on_one_ns = costs.rest_on_one_ns[level][start] * correction.one_core
    on_several_ns = costs.least_rest_ns[level][start] * correction.several
    several_win = on_several_ns < on_one_ns and costs.cores > 1
    one_does = on_one_ns <= slack_ns or not several_win

    def begin(stop: int, cores: int, avg_cores: int, *, capped: bool = False) -> Start:
        block = active.next_block(level, stop, cores, costs)
        return Start(active, block, level, capped, avg_cores, members, costs, avoid)

    if one_does and several_win and _is_alone(state, members):
        cores = cores_that_pay(costs, start, level, correction, contention)
        cores = min(cores, state.free - patience.kept(state, active, costs, start, cores, now_ns))
        return begin(costs.layers, cores, cores)
    ratio = correction.one_core if one_does else correction.several
    planned_ns = round(slack_ns / ratio)
    avg_cores = 1 if one_does else max(2, costs.cores_for_rest(level, start, planned_ns))
    if left_ns < on_one_ns and left_ns < on_several_ns:
        # Late: as if it had the whole target, fast, but without taking the machine for what is lost.
        cores = min(costs.cores_for_rest(SOLO, 0, active.qos_ns), state.free) if several_win else 1
        return begin(costs.layers, cores, avg_cores, capped=True)
    work = costs.time_work
    budget = Budget(planned_ns, work[-1] - work[start], work)
    bound = 1
    if several_win:
        total_avg = state.total_avg_with(active, avg_cores, members)
        bound = min(avg_cores + threshold(avg_cores, total_avg, state.cores), costs.cores)
    formed = with_short_rest(form_block(costs, level, start, budget, avg_cores, bound), costs, budget)
    cores = formed.cores
    if cores == 1 < avg_cores and (
        costs.time_ns(level, 1, start, formed.stop) * correction.one_core > formed.qos_ns * ratio
    ):
        cores = 2  # one would do only if it were as good as several have been recently
    if several_win and cores < state.free and not _others_wait(state, members):
        more = min(state.free, cores_that_pay(costs, start, SOLO, correction, contention))
        if one_does and more > cores:
            more = min(more, state.free - patience.kept(state, active, costs, start, more, now_ns))
        end = costs.layers
        if more > cores and costs.time_ns(level, more, start, end) < costs.time_ns(level, cores, start, end):
            return begin(end, more, avg_cores)
    return begin(formed.stop, cores, avg_cores, capped=formed.capped)


def cores_that_pay(costs: ProfileCosts, start: int, level: int, correction: Correction, contention: Contention) -> int:
    """The most cores that run the layers from `start` on for at most `WORTH` times the core time of one core,
    or `WORTH_CONTENDED` times.

    Several cores that have become slower than one has are dearer; one core that has become slower does not make
    them cheaper.
    """
    worth = WORTH_CONTENDED if contention.is_high else WORTH
    dearer = max(1.0, correction.several / correction.one_core)
    cores = costs.most_cores_within(level, start, worth)
    if cores == 1 or dearer == 1.0:
        return cores
    most_ns = worth * costs.time_ns(level, 1, start, costs.layers)
    while cores > 1 and cores * dearer * costs.time_ns(level, cores, start, costs.layers) > most_ns:
        cores -= 1
    return cores


def _others_wait(state: SchedulerState, members: tuple[ActiveQuery, ...]) -> bool:
    """Whether queries besides the one that starts and the members that join it want cores."""
    return len(state.waiting) + len(state.wants_cores) - len(members) > 1


def _is_alone(state: SchedulerState, members: tuple[ActiveQuery, ...]) -> bool:
    """Whether the query and the members that join it are all that the machine has."""
    return state.free == state.cores and len(state.in_flight) + len(state.waiting) - len(members) == 1
