"""The latency tables of code versions: every batch size, interference level and core count.

Levels are measured beside co-runners. Where those cost nothing, they may be modelled instead (see `interference`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.timing.co_runners import GRADES, distinct_levels, pressing
from veltair.compiler.timing.measure import Meter
from veltair.compiler.timing.measuring_process import Operand
from veltair.compiler.timing.modelled_interference import Memory, distinct_shares, slowdowns
from veltair.machine.cache_traffic import Reuse
from veltair.profiles.artifact.manifest import LevelSource

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TimingJob:
    """One code version to time."""

    library: Path
    symbol: str
    operands: tuple[tuple[Operand, ...], ...]  # (batches)
    layers: int = 1  # of the model that run this code; weighs in the interference level
    reuse: tuple[Reuse, ...] = ()  # (batches); wanted where levels may be modelled


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """What a modelled level depends on, beside the times alone."""

    memory: Memory
    resident_bytes: tuple[int, ...]  # (batches); of the whole model


@dataclass(frozen=True, slots=True)
class LatencyTables:
    levels: tuple[float, ...]  # ascending from 1.0
    sources: tuple[LevelSource, ...]  # of each level
    latency_ns: NDArray[np.int64]  # (jobs, batches, levels, cores)


def measure_tables(
    jobs: Sequence[TimingJob],
    meter: Meter,
    grades: Sequence[float] = GRADES,
    tick: Callable[[], None] = lambda: None,
    model: MemoryModel | None = None,
) -> LatencyTables:
    """Time every job alone, then beside co-runners of each grade on the cores that it leaves free.

    On all cores there is none free for a co-runner: there the time alone is taken times the slowdown at the largest
    count that leaves one. A grade that slows the model down no more than the one before makes no level of its own;
    on a machine that shows no slowdown, or with one core, the level 1.0 is the only one, and the log says so; given
    a model, the levels are modelled then. `tick` is called after each job of each pass; there are `passes` of them.
    """
    cores = len(meter.cores)
    alone = _measure(jobs, meter, range(1, cores + 1), tick)
    pressed = [_pressed(jobs, meter, grade, alone, tick) for grade in grades if cores > 1]
    slowdowns = [_slowdown(jobs, times, alone) for times in pressed]
    chosen = distinct_levels(slowdowns)
    if not chosen and model:
        return _modelled(jobs, alone, model)
    if not chosen:
        why = "there is one core" if cores == 1 else f"co-runners cost {max(slowdowns, default=1.0) - 1:.1%}"
        log.warning("one interference level only: %s, so versions are not told apart under pressure", why)
    levels = (1.0, *(level for _, level in chosen))
    rows = np.stack([alone, *(pressed[grade] for grade, _ in chosen)], axis=2)
    sources: tuple[LevelSource, ...] = tuple("measured" for _ in levels)
    return LatencyTables(levels, sources, _whole(rows))


def _modelled(jobs: Sequence[TimingJob], alone: NDArray[np.float64], model: MemoryModel) -> LatencyTables:
    """The times alone are measured, the slowdowns modelled, at those of ten pressures that differ."""
    found = slowdowns(alone, [job.reuse for job in jobs], model.memory, model.resident_bytes)
    of_share = found.mean(axis=(1, 3))  # (jobs, shares)
    levels = distinct_shares(np.average(of_share, axis=0, weights=[job.layers for job in jobs]).tolist())
    rows = alone[:, :, None, :] * found[:, :, [share for share, _ in levels]]
    sources: tuple[LevelSource, ...] = tuple("modelled" if share else "measured" for share, _ in levels)
    log.info("interference levels are modelled: %s", ", ".join(f"{level:g}" for _, level in levels))
    return LatencyTables(tuple(level for _, level in levels), sources, _whole(rows))


def _whole(rows: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.maximum(rows.round(), 1).astype(np.int64)


def count_passes(cores: int, grades: Sequence[float] = GRADES) -> int:
    """How often each job is visited: once alone, and once for each grade and core count that leaves a core free."""
    return 1 + len(grades) * (cores - 1)


def _measure(
    jobs: Sequence[TimingJob], meter: Meter, counts: Sequence[int], tick: Callable[[], None]
) -> NDArray[np.float64]:
    """(jobs, batches, counts)"""
    times = []
    for job in jobs:
        times.append([meter.time(job.library, job.symbol, operands, counts) for operands in job.operands])
        tick()
    return np.array(times, dtype=np.float64)


def _pressed(
    jobs: Sequence[TimingJob], meter: Meter, grade: float, alone: NDArray[np.float64], tick: Callable[[], None]
) -> NDArray[np.float64]:
    """(jobs, batches, cores) beside co-runners of this grade."""
    times = np.empty_like(alone)
    for count in range(1, len(meter.cores)):
        with pressing(meter.cores[count:], grade):
            times[:, :, count - 1 : count] = _measure(jobs, meter, (count,), tick)
    times[:, :, -1] = alone[:, :, -1] * times[:, :, -2] / alone[:, :, -2]
    return times


def _slowdown(jobs: Sequence[TimingJob], pressed: NDArray[np.float64], alone: NDArray[np.float64]) -> float:
    """Mean over the model's layers, where it was measured: the last core count is not."""
    ratio = (pressed / alone)[:, :, :-1].mean(axis=(1, 2))
    return float(np.average(ratio, weights=[job.layers for job in jobs]))
