"""The latency tables of code versions: every batch size, interference level and core count.

Levels are measured beside co-runners. Where co-runners cost nothing, levels may be modelled instead (see
`modelled_interference`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.compiler.timing.co_runners import GRADES, distinct_levels, run_co_runners
from veltair.compiler.timing.measure import BUDGET_NS, Meter
from veltair.compiler.timing.measuring_messages import Operand
from veltair.compiler.timing.modelled_interference import MemorySystem, distinct_shares, modelled_slowdowns
from veltair.machine.cache_traffic import Reuse
from veltair.profiles.artifact.manifest import LevelSource

log = logging.getLogger(__name__)

# All measurements of a model alone share so much, where that gives each at least LEAST_NS: a kernel of some
# microseconds runs hundreds of times in it. With 25 ms for each, GhostNet's 289 versions took 100 s.
SHARED_NS, LEAST_NS = 15_000_000_000, 2_000_000
# What else runs for some 100 ms meanwhile makes a few jobs look many times as slow as they are, on one number of cores
# and not on another. A second look for LEAST_NS, when all others have been timed, finds another moment.
DISTURBED = 1.25  # times what the second look says: noise of few runs is less
# Of a solo measurement's budget, for one beside co-runners, since levels come from the mean over all jobs; but two
# periods of a co-runner at least.
PRESSED, LEAST_PRESSED_NS = 0.4, 4_000_000
# Runs at least, where those of the budget are fewer: of the first look, of the second one, which only finds what the
# first one got wrong by DISTURBED, and of one beside co-runners.
FIRST_RUNS, SECOND_RUNS, PRESSED_RUNS = 3, 1, 1


@dataclass(frozen=True, slots=True)
class TimingJob:
    """One code version to time. ::

    jobs = [TimingJob(library, symbol, operands)]
    tables = make_tables(jobs, measure_times(jobs, meter))
    tables.latency_ns[0, 0, 0, 3]  # ns: first batch size, alone, on 4 cores
    """

    library: Path
    symbol: str
    operands: tuple[tuple[Operand, ...], ...]  # (batches)
    layers: int = 1  # layers of the model that run this code: its weight in the interference level
    reuse: tuple[Reuse, ...] = ()  # (batches); needed where levels may be modelled


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The inputs of modelled levels besides the solo times.

    >>> memory = MemorySystem(l2_bytes=1 << 20, llc_bytes=1 << 25, llc_bytes_per_ns=8.0, dram_bytes_per_ns=2.0)
    >>> MemoryModel(memory, resident_bytes=(1 << 24, 1 << 26)).memory.llc_bytes
    33554432
    """

    memory: MemorySystem
    resident_bytes: tuple[int, ...]  # (batches); bytes that the whole model touches


@dataclass(frozen=True, slots=True)
class LatencyTables:
    """Times of all jobs at all batch sizes, interference levels and core counts.

    >>> tables = LatencyTables((1.0,), ("measured",), np.array([[[[900, 500]]]]))
    >>> int(tables.latency_ns[0, 0, 0, 1])  # the first job at its first batch size, alone, on 2 cores
    500
    """

    levels: tuple[float, ...]  # ascending from 1.0
    sources: tuple[LevelSource, ...]  # of each level
    latency_ns: NDArray[np.int64]  # (jobs, batches, levels, cores)


class JobTimes(msgspec.Struct, frozen=True):
    """Measured times of one job, in ns.

    >>> JobTimes(alone_ns=((900.0, 500.0),), pressed_ns=()).alone_ns[0][1]  # at the first batch size, on 2 cores
    500.0
    """

    alone_ns: tuple[tuple[float, ...], ...]  # (batches, cores)
    pressed_ns: tuple[tuple[tuple[float, ...], ...], ...]  # (grades, batches, cores), beside co-runners


def measure_times(
    jobs: Sequence[TimingJob],
    meter: Meter,
    grades: Sequence[float] = GRADES,
    tick: Callable[[], None] = lambda: None,
) -> list[JobTimes]:
    """Time every job alone, then beside co-runners of each grade on the cores that it leaves free.

    With all cores in use none is free for a co-runner, so there the solo time is multiplied by the slowdown at the
    largest count that leaves one free. Alone each is timed twice, and the second time counts where it is much less.
    `tick` is called after each job of each of the `count_passes` passes.
    """
    if not jobs:
        return []
    cores = len(meter.cores)
    budget_ns = measurement_budget_ns(sum(len(job.operands) for job in jobs) * cores)
    counts = range(1, cores + 1)
    alone = _measure(jobs, meter, counts, tick, budget_ns, FIRST_RUNS)
    alone = _undisturbed(jobs, alone, _measure(jobs, meter, counts, tick, LEAST_NS, SECOND_RUNS))
    pressed_ns = max(LEAST_PRESSED_NS, round(PRESSED * budget_ns))
    pressed = [_pressed(jobs, meter, grade, alone, tick, pressed_ns) for grade in grades if cores > 1]
    rows = np.stack([alone, *pressed], axis=1).tolist()  # (jobs, 1 + grades, batches, cores)
    return [msgspec.convert({"alone_ns": row[0], "pressed_ns": row[1:]}, JobTimes) for row in rows]


def measurement_budget_ns(measurements: int) -> int:
    """Time for each of so many measurements: less where there are many, since a compile should end.

    >>> [measurement_budget_ns(count) // 1_000_000 for count in (100, 3000, 100_000)]
    [25, 5, 2]
    """
    return min(BUDGET_NS, max(LEAST_NS, SHARED_NS // measurements))


def make_tables(
    jobs: Sequence[TimingJob], times: Sequence[JobTimes], model: MemoryModel | None = None
) -> LatencyTables:
    """The tables of all jobs from their times, which need not have been measured together.

    A grade that does not slow the model down more than the one before makes no level of its own. Where nothing slows
    down, or on one core, the levels are modelled if `model` is given; otherwise 1.0 is the only level, and the log says
    so.
    """
    alone = np.array([job.alone_ns for job in times])
    cores = alone.shape[-1]
    pressed = [np.array(rows) for rows in zip(*(job.pressed_ns for job in times), strict=True)]
    slowdowns = [_slowdown(jobs, rows, alone) for rows in pressed]
    chosen = distinct_levels(slowdowns)
    if not chosen and model:
        return _modelled(jobs, alone, model)
    if not chosen:
        why = "there is one core" if cores == 1 else f"co-runners cost {max(slowdowns, default=1.0) - 1:.1%}"
        log.warning("one interference level only: %s, so versions cannot be compared under interference", why)
    levels = (1.0, *(level for _, level in chosen))
    rows = np.stack([alone, *(pressed[grade] for grade, _ in chosen)], axis=2)
    sources: tuple[LevelSource, ...] = tuple("measured" for _ in levels)
    return LatencyTables(levels, sources, _whole(rows))


def _modelled(jobs: Sequence[TimingJob], alone: NDArray[np.float64], model: MemoryModel) -> LatencyTables:
    """Tables of measured solo times and modelled slowdowns, at those of the ten pressures that differ."""
    found = modelled_slowdowns(alone, [job.reuse for job in jobs], model.memory, model.resident_bytes)
    of_share = found.mean(axis=(1, 3))  # (jobs, shares)
    levels = distinct_shares(np.average(of_share, axis=0, weights=[job.layers for job in jobs]).tolist())
    rows = alone[:, :, None, :] * found[:, :, [share for share, _ in levels]]
    sources: tuple[LevelSource, ...] = tuple("modelled" if share else "measured" for share, _ in levels)
    log.info("interference levels are modelled: %s", ", ".join(f"{level:g}" for _, level in levels))
    return LatencyTables(tuple(level for _, level in levels), sources, _whole(rows))


def _whole(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.maximum(rows.round(), 1).astype(np.int64)


def count_passes(cores: int, grades: Sequence[float] = GRADES) -> int:
    """How often each job is timed: twice alone, and once for each grade and core count that leaves a core free."""
    return 2 + len(grades) * (cores - 1)


def _measure(
    jobs: Sequence[TimingJob],
    meter: Meter,
    counts: Sequence[int],
    tick: Callable[[], None],
    budget_ns: int,
    fewest: int,
) -> NDArray[np.float64]:
    """Times in ns: (jobs, batches, counts)."""
    times = []
    for job in jobs:
        rows = [
            meter.time(job.library, job.symbol, operands, counts, budget_ns=budget_ns, fewest=fewest)
            for operands in job.operands
        ]
        times.append(rows)
        tick()
    return np.array(times, dtype=np.float64)


def _undisturbed(
    jobs: Sequence[TimingJob], first: NDArray[np.float64], second: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The first times, but the second ones where those are much less."""
    disturbed = first > DISTURBED * second
    for job, times in zip(jobs, disturbed, strict=True):
        if times.any():
            log.info("%s: something else ran while it was timed; a second look counts", job.symbol)
    return np.where(disturbed, second, first)


def _pressed(
    jobs: Sequence[TimingJob],
    meter: Meter,
    grade: float,
    alone: NDArray[np.float64],
    tick: Callable[[], None],
    budget_ns: int,
) -> NDArray[np.float64]:
    """Times in ns beside co-runners of this grade: (jobs, batches, cores).

    The smallest and the largest batch are timed. The slowdown of the others lies between, by their place: they are
    nearly powers of two.
    """
    ends = sorted({0, alone.shape[1] - 1})
    extreme = [replace(job, operands=tuple(job.operands[end] for end in ends)) for job in jobs]
    share = np.linspace(0.0, 1.0, alone.shape[1])
    slowdown = np.empty_like(alone)
    for count in range(1, len(meter.cores)):
        with run_co_runners(meter.cores[count:], grade):
            times = _measure(extreme, meter, (count,), tick, budget_ns, PRESSED_RUNS)[:, :, 0]
        least, most = (times / alone[:, ends, count - 1])[:, [0, -1]].T[:, :, None]
        slowdown[:, :, count - 1] = least + share * (most - least)
    slowdown[:, :, -1] = slowdown[:, :, -2]
    return alone * slowdown


def _slowdown(jobs: Sequence[TimingJob], pressed: NDArray[np.float64], alone: NDArray[np.float64]) -> float:
    """The model's mean slowdown, weighted by layers. The last core count is left out, since it was not measured."""
    ratio = (pressed / alone)[:, :, :-1].mean(axis=(1, 2))
    return float(np.average(ratio, weights=[job.layers for job in jobs]))
