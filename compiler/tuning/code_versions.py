"""Makes a layer's code versions from its measured candidates: selects, compiles, checks, times and prunes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from veltair.compiler.graph.layer_spec import LayerSpec, Point, version_symbol
from veltair.compiler.locality.kernel_reuse import compulsory_bytes, kernel_reuse
from veltair.compiler.shared_library import ObjectFile, compile_objects, link_library
from veltair.compiler.timing.latency_tables import LatencyTables, MemoryModel, TimingJob, count_passes, measure_tables
from veltair.compiler.timing.measure import CandidateError, Meter, result_operands
from veltair.compiler.timing.measuring_messages import Operand
from veltair.compiler.timing.modelled_interference import MemorySystem
from veltair.compiler.tuning import frontier
from veltair.compiler.tuning.correctness import ReferenceCheck
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.setting import Setting
from veltair.errors import VeltairError
from veltair.machine.cache_traffic import Reuse

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
    """A version that passed its check and is not timed yet."""

    version: TunedVersion
    library: Path
    operands: tuple[tuple[Operand, ...], ...]  # (batches)
    reuse: tuple[Reuse, ...]  # (batches); none where levels are not modelled


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
) -> tuple[LatencyTables, dict[str, list[TunedVersion]]]:
    """Return the latency tables of all timed versions, and the versions kept.

    The versions are keyed by `LayerSpec.symbol` and sorted by ascending block size.

    Args:
        found: measured candidates of each workload.
        batches: batch sizes to time.
        scratch: a folder for object files, which the versions refer to.
        memory: where given, interference levels are modelled for it if none can be measured.

    Raises VeltairError when no candidate of a layer matches its reference.
    """
    best = [min(candidate.best_ns for candidate in found[spec.workload]) for spec in specs]
    shares = frontier.layer_qos_ns(best, qos_ns)
    layers = Counter(spec.symbol for spec in specs)
    distinct = {spec.symbol: (spec, share) for spec, share in zip(specs, shares, strict=True)}
    task = progress.add_task("build and check", total=len(distinct))
    drafts: dict[str, list[_Draft]] = {}
    for symbol, (spec, share) in distinct.items():
        layer = _Layer(spec, batches, meter, setting, scratch, modelled=memory is not None)
        drafts[symbol] = layer.drafts(found[spec.workload], share, progress)
        progress.advance(task)

    jobs = [
        TimingJob(d.library, d.version.symbol, d.operands, layers[s], d.reuse) for s, ds in drafts.items() for d in ds
    ]
    timing = progress.add_task("time alone and under pressure", total=len(jobs) * count_passes(len(meter.cores)))
    resident = tuple(sum(compulsory_bytes(spec, batch) for spec in specs) for batch in batches)
    model = MemoryModel(memory, resident) if memory else None
    tables = measure_tables(jobs, meter, tick=lambda: progress.advance(timing), model=model)
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
        modelled: bool,
    ) -> None:
        self._spec, self._batches, self._meter, self._setting, self._scratch = spec, batches, meter, setting, scratch
        self._modelled = modelled
        sizes = sorted({1, min(3, batches[-1]), batches[-1]})  # 3: not a multiple of any tile's rows
        self._checks = [ReferenceCheck(spec, size, setting.bounds, setting.precision) for size in sizes]
        self._verdicts: dict[tuple[tuple[str, int | str], ...], _Draft | str] = {}  # by point

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
        """Return for each candidate a draft, or its fault."""
        spec, setting, first = self._spec, self._setting, len(self._verdicts)
        kernels = [setting.spaces[spec.op].build(spec, c.point, setting.features) for c in candidates]
        sources = []
        for candidate, kernel in zip(candidates, kernels, strict=True):
            symbol = version_symbol(spec, candidate.point)
            sources.append(ObjectFile(kernel.function, symbol, self._scratch / f"{symbol}.o"))
        faults = compile_objects(sources, setting.target)
        library = self._scratch / f"{spec.symbol}_{first}.so"
        link_library([source.path for source, fault in zip(sources, faults, strict=True) if not fault], library)
        verdicts: list[_Draft | str] = []
        for candidate, kernel, source, fault in zip(candidates, kernels, sources, faults, strict=True):
            weights = self._meter.weights(kernel)
            fault = fault or self._fault(library, source.symbol, weights)
            sizes = kernel.block_size, kernel.parallelism
            version = TunedVersion(candidate.point, source.symbol, source.path, *sizes, origin=candidate.origin)
            operands = (
                (*self._meter.inputs(spec, batch, setting.bounds), *weights, *result_operands(spec, batch))
                for batch in self._batches
            )
            reuse = tuple(kernel_reuse(spec, kernel, batch) for batch in self._batches) if self._modelled else ()
            verdicts.append(fault or _Draft(version, library, tuple(operands), reuse))
        return verdicts

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
