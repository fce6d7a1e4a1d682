"""Makes each layer's code versions from its candidates: those that pass their check are timed and pruned."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.locality.kernel_reuse import compulsory_bytes
from veltair.compiler.shared_library import ObjectCompiler
from veltair.compiler.timing.latency_tables import (
    JobTimes,
    LatencyTables,
    MemoryModel,
    count_passes,
    make_tables,
    measure_times,
)
from veltair.compiler.timing.measure import Meter
from veltair.compiler.timing.modelled_interference import MemorySystem
from veltair.compiler.tuning import frontier
from veltair.compiler.tuning.checked_versions import CheckedVersion, TunedVersion, VersionBuilder
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.compiler.tuning.setting import Setting

MOST_AHEAD = 8  # layers that are compiled before one is checked: each holds its packed weights


def choose_versions(
    specs: Sequence[LayerSpec],
    found: Mapping[str, list[Candidate]],
    qos_ns: int,
    batches: Sequence[int],
    meter: Meter,
    setting: Setting,
    scratch: Path,
    progress: Progress,
    memory: MemorySystem | None = None,
    cache: KernelCache | None = None,
) -> tuple[LatencyTables, dict[str, list[TunedVersion]]]:
    """Return the latency tables of all timed versions, and the versions kept.

    The versions are keyed by `LayerSpec.symbol` and sorted by ascending block size.

    Args:
        found: measured candidates of each workload.
        batches: batch sizes to time.
        scratch: a folder for object files, which the versions refer to.
        memory: where given, interference levels are modelled for it if none can be measured.
        cache: objects and times of earlier compiles; by default none.

    Raises VeltairError when no candidate of a layer matches its reference.
    """
    cache = cache or KernelCache()
    best = [min(candidate.best_ns for candidate in found[spec.workload]) for spec in specs]
    shares = frontier.layer_qos_ns(best, qos_ns)
    layers = Counter(spec.symbol for spec in specs)
    distinct = {spec.symbol: (spec, share) for spec, share in zip(specs, shares, strict=True)}
    task = progress.add_task("build and check", total=len(distinct))
    checked: dict[str, list[CheckedVersion]] = {}
    begun: deque[tuple[str, VersionBuilder]] = deque()

    def check_first() -> None:
        symbol, builder = begun.popleft()
        checked[symbol] = builder.checked(progress)
        progress.advance(task)

    # While a layer is linked and checked, the cores compile the next ones.
    with ObjectCompiler(setting.target) as compiler:
        modelled, ahead = memory is not None, min(len(meter.cores), MOST_AHEAD)
        for symbol, (spec, share) in distinct.items():
            counted = layers[symbol]
            builder = VersionBuilder(
                spec, batches, meter, setting, scratch, compiler, layers=counted, modelled=modelled, cache=cache
            )
            builder.begin(found[spec.workload], share)
            begun.append((symbol, builder))
            if len(begun) > ahead:
                check_first()
        while begun:
            check_first()
    every = [version for group in checked.values() for version in group]
    resident = tuple(sum(compulsory_bytes(spec, batch) for spec in specs) for batch in batches)
    model = MemoryModel(memory, resident) if memory else None
    tables = make_tables([version.job for version in every], _times(every, meter, cache, progress), model)
    rows = iter(tables.latency_ns)
    kept: dict[str, list[TunedVersion]] = {}
    for symbol, group in checked.items():
        table = np.stack([next(rows) for _ in group])  # (versions, batches, levels, cores)
        alone = table[:, batches.index(setting.batch), 0]
        indices = frontier.prune_versions(
            table.reshape(len(group), -1).astype(np.float64), set(alone.argmin(axis=0).tolist())
        )
        kept[symbol] = [_timed(group[i].version, table[i]) for i in indices]
    return tables, kept


def _times(checked: Sequence[CheckedVersion], meter: Meter, cache: KernelCache, progress: Progress) -> list[JobTimes]:
    """The times of all versions: those of earlier compiles, and the others measured now."""
    fresh = [version for version in checked if version.kept is None]
    timing = progress.add_task(
        "time alone and under pressure", total=len(fresh) * count_passes(len(meter.cores)), visible=bool(fresh)
    )
    measured = measure_times([version.job for version in fresh], meter, tick=lambda: progress.advance(timing))
    made = iter([cache.keep_times(version.times_key, times) for version, times in zip(fresh, measured, strict=True)])
    found = [version.kept or next(made) for version in checked]
    cache.counts.tables_measured += len(fresh)
    cache.counts.tables_reused += len(checked) - len(fresh)
    cache.counts.oldest_s = min((kept.measured_s for kept in found), default=0)
    return [kept.times for kept in found]


def _timed(version: TunedVersion, table: NDArray[np.int64]) -> TunedVersion:
    latency = tuple(tuple(tuple(row) for row in rows) for rows in table.tolist())
    return replace(version, latency_ns=latency)
