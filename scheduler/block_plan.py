"""What veltair-full would do with a new query, explained without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from veltair.errors import ConfigError
from veltair.scheduler.blocks import find_pivots, form_adaptive_block, whole_budget
from veltair.scheduler.costs.level_grid import level_grid, nearest_level
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.types import Machine, ModelProfile


@dataclass(frozen=True, slots=True)
class PlannedBlock:
    """Layers [start, stop) as the policy forms them if the blocks before take just what is predicted.

    >>> block = PlannedBlock(0, 2, 4, 90, 100, versions=(0, 1), avg_cores=3, threshold_cores=1, capped=False)
    >>> block.cores, block.predicted_ns
    (4, 90)
    """

    start: int
    stop: int
    cores: int
    predicted_ns: int
    qos_ns: int  # the layers' share of the target
    versions: tuple[int, ...]  # one code version index per layer
    avg_cores: int  # Avg_C: of the whole model against the target
    threshold_cores: int
    capped: bool  # needs more than avg + threshold, and gets no more


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """All blocks of one query; `explain` makes one.

    ::

        plan = explain(profile, machine, qos_ns=15_000_000)
        [block.cores for block in plan.blocks]
    """

    model: str
    batch: int
    cores: int
    qos_ns: int
    level: float  # the one asked for, moved to the nearest of the grid that the profile's levels span
    avg_cores: int
    threshold_cores: int
    pivots: tuple[int, ...]  # layers that alone need avg + threshold or more
    blocks: tuple[PlannedBlock, ...]
    predicted_ns: int  # of all blocks


def explain(
    profile: ModelProfile,
    machine: Machine,
    qos_ns: int,
    level: float = 1.0,
    load: Sequence[int] | int = (),
    *,
    split_by_ops: bool = False,
) -> BlockPlan:
    """The blocks of one query that finds the machine at this level and under this load.

    `load`: the other active queries' average needs (Avg_C), or their sum; both in cores. They and the level stay
    as they are throughout. `split_by_ops`: the target is split among the layers by operations (`ProfileCosts`).
    Raises ConfigError.
    """
    cores = len(machine.cores)
    others = load if isinstance(load, int) else sum(load)
    if cores < 1 or qos_ns <= 0 or level < 1.0:
        raise ConfigError(
            f"plan: expected at least 1 core, a QoS above 0 ns and a level of 1.0 or more, "
            f"got {cores}, {qos_ns} and {level}"
        )
    if others < 0 or (not isinstance(load, int) and min(load, default=0) < 0):
        raise ConfigError(f"plan: expected a load of 0 cores or more, got {load}")
    grid = level_grid([profile])
    at = nearest_level(grid, level)
    costs = ProfileCosts(profile, grid, cores, split_by_ops=split_by_ops)
    blocks = _plan_blocks(costs, at, qos_ns, others, cores)
    first = blocks[0]
    bound = min(first.avg_cores + first.threshold_cores, costs.cores)
    pivots = find_pivots(costs, at, 0, whole_budget(costs, qos_ns), first.avg_cores, bound)
    return BlockPlan(
        model=profile.model,
        batch=profile.batch,
        cores=cores,
        qos_ns=qos_ns,
        level=grid[at],
        avg_cores=first.avg_cores,
        threshold_cores=first.threshold_cores,
        pivots=tuple(pivots),
        blocks=tuple(blocks),
        predicted_ns=sum(block.predicted_ns for block in blocks),
    )


def _plan_blocks(costs: ProfileCosts, level: int, qos_ns: int, others_avg: int, cores: int) -> list[PlannedBlock]:
    blocks: list[PlannedBlock] = []
    start, budget = 0, whole_budget(costs, qos_ns)
    while start < costs.layers:
        formed, avg_cores, extra = form_adaptive_block(costs, level, start, budget, 0, others_avg, cores)
        stop = formed.stop
        block = PlannedBlock(
            start=start,
            stop=stop,
            cores=formed.cores,
            predicted_ns=costs.time_ns(level, formed.cores, start, stop),
            qos_ns=formed.qos_ns,
            versions=costs.versions(level, formed.cores, start, stop),
            avg_cores=avg_cores,
            threshold_cores=extra,
            capped=formed.capped,
        )
        blocks.append(block)
        start = stop
    return blocks
