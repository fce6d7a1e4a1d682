"""Makes a layer's code versions from its measured candidates: selects, compiles, checks, times and prunes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point, version_symbol
from veltair.compiler.locality.kernel_reuse import compulsory_bytes, kernel_reuse
from veltair.compiler.shared_library import ObjectFile, link_library
from veltair.compiler.timing.latency_tables import (
    JobTimes,
    LatencyTables,
    MemoryModel,
    TimingJob,
    count_passes,
    make_tables,
    measure_times,
)
from veltair.compiler.timing.measure import CandidateError, Meter, result_operands
from veltair.compiler.timing.measuring_messages import Operand
from veltair.compiler.timing.modelled_interference import MemorySystem
from veltair.compiler.tuning import frontier
from veltair.compiler.tuning.cache_keys import object_key, times_key, version_key
from veltair.compiler.tuning.correctness import ReferenceCheck
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.kernel_cache import KeptTimes, KeptVersion, KernelCache
from veltair.compiler.tuning.setting import Setting
from veltair.errors import VeltairError

Latency: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]  # ns; (batches, levels, cores)


@dataclass(frozen=True, slots=True)
class TunedVersion:
    """A compiled, checked and timed code version. Layers of equal code share it; their weights differ.

    >>> TunedVersion({"tile": 8}, "conv_0", Path("conv_0.o"), block_size=4096, parallelism=16).origin
    ''
    """

    point: Point
    symbol: str
    object_file: Path
    block_size: int
    parallelism: int
    latency_ns: Latency = ()
    origin: str = ""  # how the search found its point


@dataclass(frozen=True, slots=True)
class _Draft:
    """A version that passed its check, now or in an earlier compile."""

    version: TunedVersion
    job: TimingJob
    times_key: str
    kept: KeptTimes | None  # the times of an earlier compile; without them, the job is to be measured


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
    drafts: dict[str, list[_Draft]] = {}
    for symbol, (spec, share) in distinct.items():
        modelled = memory is not None
        layer = _Layer(spec, batches, meter, setting, scratch, layers[symbol], modelled, cache)
        drafts[symbol] = layer.drafts(found[spec.workload], share, progress)
        progress.advance(task)
    every = [draft for group in drafts.values() for draft in group]
    resident = tuple(sum(compulsory_bytes(spec, batch) for spec in specs) for batch in batches)
    model = MemoryModel(memory, resident) if memory else None
    tables = make_tables([draft.job for draft in every], _times(every, meter, cache, progress), model)
    rows = iter(tables.latency_ns)
    kept: dict[str, list[TunedVersion]] = {}
    for symbol, group in drafts.items():
        table = np.stack([next(rows) for _ in group])  # (versions, batches, levels, cores)
        alone = table[:, batches.index(setting.batch), 0]
        indices = frontier.prune_versions(
            table.reshape(len(group), -1).astype(np.float64), set(alone.argmin(axis=0).tolist())
        )
        kept[symbol] = [_timed(group[i].version, table[i]) for i in indices]
    return tables, kept


def _times(drafts: Sequence[_Draft], meter: Meter, cache: KernelCache, progress: Progress) -> list[JobTimes]:
    """The times of all drafts: those of earlier compiles, and the others measured now."""
    fresh = [draft for draft in drafts if draft.kept is None]
    timing = progress.add_task(
        "time alone and under pressure", total=len(fresh) * count_passes(len(meter.cores)), visible=bool(fresh)
    )
    measured = measure_times([draft.job for draft in fresh], meter, tick=lambda: progress.advance(timing))
    made = iter([cache.keep_times(draft.times_key, times) for draft, times in zip(fresh, measured, strict=True)])
    found = [draft.kept or next(made) for draft in drafts]
    cache.counts.tables_measured += len(fresh)
    cache.counts.tables_reused += len(drafts) - len(fresh)
    cache.counts.oldest_s = min((kept.measured_s for kept in found), default=0)
    return [kept.times for kept in found]


def _timed(version: TunedVersion, table: NDArray[np.int64]) -> TunedVersion:
    latency = tuple(tuple(tuple(row) for row in rows) for rows in table.tolist())
    return replace(version, latency_ns=latency)


class _Layer:
    """Builds and checks the versions of one distinct layer."""

    def __init__(
        self,
        spec: LayerSpec,
        batches: Sequence[int],
        meter: Meter,
        setting: Setting,
        scratch: Path,
        layers: int,
        modelled: bool,
        cache: KernelCache,
    ) -> None:
        self._spec, self._batches, self._meter, self._setting, self._scratch = spec, batches, meter, setting, scratch
        self._layers, self._modelled, self._cache = layers, modelled, cache
        self._libraries = 0
        self._verdicts: dict[tuple[tuple[str, int | str], ...], _Draft | str] = {}  # by point

    @cached_property
    def _checks(self) -> list[ReferenceCheck]:
        sizes = sorted({1, min(3, self._batches[-1]), self._batches[-1]})  # 3: not a multiple of any tile's rows
        return [ReferenceCheck(self._spec, size, self._setting.bounds, self._setting.precision) for size in sizes]

    def drafts(self, candidates: Sequence[Candidate], share_ns: float, progress: Progress) -> list[_Draft]:
        """Return the selected versions. A wrong one is left out, and the selection repeated without it."""
        while candidates:
            selected = frontier.select_versions(candidates, share_ns)
            fresh = [c for c in selected if _key(c.point) not in self._verdicts]
            for candidate, verdict in zip(fresh, self._build(fresh), strict=True):
                self._verdicts[_key(candidate.point)] = verdict
                if isinstance(verdict, str):
                    progress.console.print(f"left out: {verdict}", style="yellow", highlight=False, soft_wrap=True)
            verdicts = [self._verdicts[_key(c.point)] for c in selected]
            drafts = [verdict for verdict in verdicts if isinstance(verdict, _Draft)]
            if len(drafts) == len(verdicts):
                return drafts
            candidates = [c for c in candidates if not isinstance(self._verdicts.get(_key(c.point)), str)]
        faults = "; ".join(v for v in self._verdicts.values() if isinstance(v, str))
        raise VeltairError(f"layer {self._spec.name} ({self._spec.workload}): no version is right: {faults[:1000]}")

    def _build(self, candidates: Sequence[Candidate]) -> list[_Draft | str]:
        """Return for each candidate a draft, or its fault. What an earlier compile left is neither made nor checked."""
        recalled = [self._recall(candidate) for candidate in candidates]
        made = iter(self._make([c for c, draft in zip(candidates, recalled, strict=True) if draft is None]))
        return [draft or next(made) for draft in recalled]

    def _recall(self, candidate: Candidate) -> _Draft | None:
        """The draft of a version that was checked and timed before, on this machine and with these weights."""
        symbol = version_symbol(self._spec, candidate.point)
        path = self._scratch / f"{symbol}.o"
        version = self._cache.find_version(self._version_key(candidate.point), path)
        if version is None:
            return None
        key = self._times_key(candidate.point, version.object_digest, None)
        times = self._cache.find_times(key)
        if times is None:
            return None
        tuned = TunedVersion(
            candidate.point, symbol, path, version.block_size, version.parallelism, origin=candidate.origin
        )
        return _Draft(tuned, TimingJob(path, symbol, (), self._layers, version.reuse), key, times)

    def _make(self, candidates: Sequence[Candidate]) -> list[_Draft | str]:
        if not candidates:
            return []
        spec, setting = self._spec, self._setting
        kernels = [setting.spaces[spec.op].build(spec, c.point, setting.features) for c in candidates]
        sources = []
        for candidate, kernel in zip(candidates, kernels, strict=True):
            symbol = version_symbol(spec, candidate.point)
            sources.append(ObjectFile(kernel.function, symbol, self._scratch / f"{symbol}.o"))
        keys = [object_key(spec, c.point, k, setting) for c, k in zip(candidates, kernels, strict=True)]
        faults = self._cache.compile(sources, keys, setting.target)
        library = self._link([source.path for source, fault in zip(sources, faults, strict=True) if not fault])
        verdicts: list[_Draft | str] = []
        for candidate, kernel, source, key, fault in zip(candidates, kernels, sources, keys, faults, strict=True):
            weights = self._meter.weights(kernel)
            fault = fault or self._fault(library, source.symbol, weights)
            if fault and self._cache.put_back(source.path):  # whatever happened to it: what is built here decides
                verdicts += self._make([candidate])
            else:
                verdicts.append(fault or self._draft(candidate, kernel, source, key, library, weights))
        return verdicts

    def _draft(
        self,
        candidate: Candidate,
        kernel: Kernel,
        source: ObjectFile,
        object_key: str,
        library: Path,
        weights: Sequence[Operand],
    ) -> _Draft:
        spec, sizes = self._spec, (kernel.block_size, kernel.parallelism)
        version = TunedVersion(candidate.point, source.symbol, source.path, *sizes, origin=candidate.origin)
        operands = (
            (*self._meter.inputs(spec, batch, self._setting.bounds), *weights, *result_operands(spec, batch))
            for batch in self._batches
        )
        reuse = tuple(tuple(kernel_reuse(spec, kernel, batch)) for batch in self._batches) if self._modelled else ()
        digest = self._cache.keep_object(object_key, source.path)
        self._cache.keep_version(self._version_key(candidate.point), KeptVersion(object_key, digest, *sizes, reuse))
        key = self._times_key(candidate.point, digest, kernel)
        job = TimingJob(library, source.symbol, tuple(operands), self._layers, reuse)
        return _Draft(version, job, key, self._cache.find_times(key))

    def _version_key(self, point: Point) -> str:
        return version_key(self._spec, point, self._batches, self._meter.cores, self._setting, self._modelled)

    def _times_key(self, point: Point, object_digest: str, kernel: Kernel | None) -> str:
        return times_key(self._spec, point, object_digest, kernel, self._batches, self._meter.cores, self._setting)

    def _link(self, objects: Sequence[Path]) -> Path:
        """A library of its own each time: the measuring process knows libraries by their paths."""
        library = self._scratch / f"{self._spec.symbol}_{self._libraries}.so"
        self._libraries += 1
        link_library(objects, library)
        return library

    def _fault(self, library: Path, symbol: str, weights: Sequence[Operand]) -> str:
        """The fault of a version's results; empty where they are right."""
        try:
            for check in self._checks:
                for count in sorted({1, len(self._meter.cores)}):
                    if fault := check.find_fault(self._meter, library, symbol, weights, count):
                        return f"{symbol}: {fault}"
        except CandidateError as error:
            return str(error)
        return ""


def _key(point: Point) -> tuple[tuple[str, int | str], ...]:
    return tuple(sorted(point.items()))
