"""A layer's versions up to their timing: selected from its candidates, compiled, and checked with a reference."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rich.progress import Progress

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point, version_symbol
from veltair.compiler.locality.kernel_reuse import kernel_reuse
from veltair.compiler.shared_library import ObjectCompiler, ObjectFile, link_library
from veltair.compiler.timing.latency_tables import TimingJob
from veltair.compiler.timing.measure import CandidateError, Meter, result_operands
from veltair.compiler.timing.measuring_messages import Operand
from veltair.compiler.tuning import frontier
from veltair.compiler.tuning.cache_keys import object_key, times_key, version_key
from veltair.compiler.tuning.correctness import ReferenceCheck
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.kernel_cache import KeptTimes, KeptVersion, KernelCache
from veltair.compiler.tuning.setting import Setting
from veltair.errors import VeltairError

CHECKED = (1, 3)  # samples with which a version is checked on one core and on all; 3 are no multiple of a tile's rows

Latency: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]  # ns; (batches, levels, cores)
PointKey: TypeAlias = tuple[tuple[str, int | str], ...]


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
class CheckedVersion:
    """A version that passed its check, now or in an earlier compile. `VersionBuilder.checked` makes it."""

    version: TunedVersion
    job: TimingJob
    times_key: str
    kept: KeptTimes | None  # the times of an earlier compile; without them, the job is to be measured


class _BegunVersion(NamedTuple):
    """A version that is being compiled."""

    kernel: Kernel
    source: ObjectFile
    object_key: str
    fault: Future[str]  # empty once it has compiled


class VersionBuilder:
    """Builds and checks the versions of one distinct layer.

    ::

        builder = VersionBuilder(
            spec, batches, meter, setting, scratch, compiler, layers=2, modelled=False, cache=KernelCache()
        )
        builder.begin(candidates, share_ns=80_000)
        builder.checked(progress)
    """

    def __init__(
        self,
        spec: LayerSpec,
        batches: Sequence[int],
        meter: Meter,
        setting: Setting,
        scratch: Path,
        compiler: ObjectCompiler,
        *,
        layers: int,
        modelled: bool,
        cache: KernelCache,
    ) -> None:
        """`batches`: sizes to check and time. `scratch`: a folder for object files. `layers`: how many layers of the
        model are equal to this one. `modelled`: whether interference levels may be modelled, which takes the reuse
        of data.
        """
        self._spec, self._batches, self._meter, self._setting, self._scratch = spec, batches, meter, setting, scratch
        self._compiler, self._layers, self._modelled, self._cache = compiler, layers, modelled, cache
        self._candidates: Sequence[Candidate] = ()
        self._share_ns = 0.0
        self._libraries = 0
        self._begun: dict[PointKey, _BegunVersion] = {}
        self._verdicts: dict[PointKey, CheckedVersion | str] = {}

    @cached_property
    def _checks(self) -> list[ReferenceCheck]:
        return [self._check(size) for size in sorted({min(size, self._batches[-1]) for size in CHECKED})]

    @cached_property
    def _last_check(self) -> ReferenceCheck:
        return self._check(self._batches[-1])

    def _check(self, batch: int) -> ReferenceCheck:
        return ReferenceCheck(self._spec, batch, self._setting.bounds, self._setting.precision)

    def begin(self, candidates: Sequence[Candidate], share_ns: float) -> None:
        """Select versions, and begin to compile those that no earlier compile left; `checked` waits for them."""
        self._candidates, self._share_ns = candidates, share_ns
        for candidate in frontier.select_versions(candidates, share_ns) if candidates else ():
            if version := self._recall(candidate):
                self._verdicts[_key(candidate.point)] = version
            else:
                self._begin(candidate)

    def checked(self, progress: Progress) -> list[CheckedVersion]:
        """Return the selected versions. A wrong one is left out, and the selection repeated without it."""
        candidates = self._candidates
        while candidates:
            selected = frontier.select_versions(candidates, self._share_ns)
            fresh = [c for c in selected if _key(c.point) not in self._verdicts]
            for candidate, verdict in zip(fresh, self._build(fresh), strict=True):
                self._verdicts[_key(candidate.point)] = verdict
                if isinstance(verdict, str):
                    progress.console.print(f"left out: {verdict}", style="yellow", highlight=False, soft_wrap=True)
            verdicts = [self._verdicts[_key(c.point)] for c in selected]
            right = [verdict for verdict in verdicts if isinstance(verdict, CheckedVersion)]
            if len(right) == len(verdicts):
                return right
            candidates = [c for c in candidates if not isinstance(self._verdicts.get(_key(c.point)), str)]
        faults = "; ".join(v for v in self._verdicts.values() if isinstance(v, str))
        raise VeltairError(f"layer {self._spec.name} ({self._spec.workload}): no version is right: {faults[:1000]}")

    def _build(self, candidates: Sequence[Candidate]) -> list[CheckedVersion | str]:
        """The version of each candidate, or its fault. What an earlier compile left is neither made nor checked."""
        recalled = [None if _key(c.point) in self._begun else self._recall(c) for c in candidates]
        made = iter(self._make([c for c, version in zip(candidates, recalled, strict=True) if version is None]))
        return [version or next(made) for version in recalled]

    def _recall(self, candidate: Candidate) -> CheckedVersion | None:
        """The version, if it was checked and timed before, on this machine and with these weights."""
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
        return CheckedVersion(tuned, TimingJob(path, symbol, (), self._layers, version.reuse), key, times)

    def _begin(self, candidate: Candidate) -> None:
        spec, setting = self._spec, self._setting
        kernel = setting.spaces[spec.op].build(spec, candidate.point, setting.features)
        symbol = version_symbol(spec, candidate.point)
        source = ObjectFile(kernel.function, symbol, self._scratch / f"{symbol}.o")
        key = object_key(spec, candidate.point, kernel, setting)
        fault = self._cache.begin(source, key, self._compiler)
        self._begun[_key(candidate.point)] = _BegunVersion(kernel, source, key, fault)

    def _make(self, candidates: Sequence[Candidate]) -> list[CheckedVersion | str]:
        if not candidates:
            return []
        for candidate in candidates:
            if _key(candidate.point) not in self._begun:
                self._begin(candidate)
        begun = [self._begun.pop(_key(candidate.point)) for candidate in candidates]
        library = self._link([version.source.path for version in begun if not version.fault.result()])
        verdicts: list[CheckedVersion | str] = []
        for candidate, version in zip(candidates, begun, strict=True):
            weights = self._meter.weights(version.kernel)
            fault = version.fault.result() or self._fault(library, version.source.symbol, weights)
            # Whatever happened to an object of the cache: what is built here decides.
            if fault and self._cache.put_back(version.source.path):
                verdicts += self._make([candidate])
            else:
                verdicts.append(fault or self._keep(candidate, version, library, weights))
        return verdicts

    def _keep(
        self, candidate: Candidate, begun: _BegunVersion, library: Path, weights: Sequence[Operand]
    ) -> CheckedVersion:
        spec, kernel, source = self._spec, begun.kernel, begun.source
        sizes = (kernel.block_size, kernel.parallelism)
        version = TunedVersion(candidate.point, source.symbol, source.path, *sizes, origin=candidate.origin)
        operands = (
            (*self._meter.inputs(spec, batch, self._setting.bounds), *weights, *result_operands(spec, batch))
            for batch in self._batches
        )
        reuse = tuple(tuple(kernel_reuse(spec, kernel, batch)) for batch in self._batches) if self._modelled else ()
        digest = self._cache.keep_object(begun.object_key, source.path)
        self._cache.keep_version(
            self._version_key(candidate.point), KeptVersion(begun.object_key, digest, *sizes, reuse)
        )
        key = self._times_key(candidate.point, digest, kernel)
        job = TimingJob(library, source.symbol, tuple(operands), self._layers, reuse)
        return CheckedVersion(version, job, key, self._cache.find_times(key))

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
            fault = self._first_fault(library, symbol, weights)
        except CandidateError as error:
            return str(error)
        return f"{symbol}: {fault}" if fault else ""

    def _first_fault(self, library: Path, symbol: str, weights: Sequence[Operand]) -> str:
        cores, most = len(self._meter.cores), self._batches[-1]
        for check in self._checks:
            for count in sorted({1, cores}):
                if fault := check.find_fault(self._meter, library, symbol, weights, count):
                    return fault
        # One core shares the work as it does at the other sizes; the largest one takes most of the time.
        few = self._checks[-1]
        if most == few.batch or few.repeats(self._meter, library, symbol, weights, cores, most):
            return ""
        return self._last_check.find_fault(self._meter, library, symbol, weights, cores)


def _key(point: Point) -> PointKey:
    return tuple(sorted(point.items()))
