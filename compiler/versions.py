"""From a layer's measured candidates to its code versions: selected, compiled, checked, timed and pruned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from veltair.compiler import frontier
from veltair.compiler.check import Check
from veltair.compiler.frontier import Candidate
from veltair.compiler.ir import LayerSpec, Point
from veltair.compiler.library import BuildError, compile_object, link
from veltair.compiler.measure import CandidateError, Meter, input_operands, result_operands
from veltair.compiler.search import Setting
from veltair.compiler.stopwatch import Operand
from veltair.compiler.timing import Job, measure_tables, passes
from veltair.errors import VeltairError

Latency: TypeAlias = tuple[tuple[tuple[int, ...], ...], ...]  # ns; (batches, levels, cores)


@dataclass(frozen=True, slots=True)
class Version:
    """A code version on its way into the artifact. Layers of equal code share it; their weights differ."""

    point: Point
    symbol: str
    object_file: Path
    block_size: int
    parallelism: int
    latency_ns: Latency = ()


@dataclass(frozen=True, slots=True)
class _Draft:
    """A version that was checked and waits to be timed."""

    version: Version
    library: Path
    operands: tuple[tuple[Operand, ...], ...]  # (batches)


def choose_versions(
    specs: Sequence[LayerSpec],
    found: Mapping[str, list[Candidate]],
    qos_ns: int,
    batches: Sequence[int],
    meter: Meter,
    setting: Setting,
    scratch: Path,
    progress: Progress,
) -> tuple[tuple[float, ...], dict[str, list[Version]]]:
    """Interference levels, and the versions of each distinct `LayerSpec.symbol` by ascending block size.

    Args:
        found: measured candidates of each workload.
        batches: sizes of a dynamic batch to time.
        scratch: a folder for object files, which the versions refer to.

    Raises VeltairError for a layer none of whose candidates gives what its reference gives.
    """
    best = [min(candidate.best_ns for candidate in found[spec.workload]) for spec in specs]
    shares = frontier.layer_qos_ns(best, qos_ns)
    layers = Counter(spec.symbol for spec in specs)
    distinct = {spec.symbol: (spec, share) for spec, share in zip(specs, shares, strict=True)}
    task = progress.add_task("build and check", total=len(distinct))
    drafts: dict[str, list[_Draft]] = {}
    for symbol, (spec, share) in distinct.items():
        drafts[symbol] = _Layer(spec, batches, meter, setting, scratch).drafts(found[spec.workload], share, progress)
        progress.advance(task)

    jobs = [Job(d.library, d.version.symbol, d.operands, layers[s]) for s, ds in drafts.items() for d in ds]
    timing = progress.add_task("time alone and under pressure", total=len(jobs) * passes(len(meter.cores)))
    tables = measure_tables(jobs, meter, tick=lambda: progress.advance(timing))
    rows = iter(tables.latency_ns)
    kept: dict[str, list[Version]] = {}
    for symbol, group in drafts.items():
        table = np.stack([next(rows) for _ in group])  # (versions, batches, levels, cores)
        alone = table[:, batches.index(setting.batch), 0]
        indices = frontier.prune(table.reshape(len(group), -1).astype(np.float64), set(alone.argmin(axis=0).tolist()))
        kept[symbol] = [_timed(group[i].version, table[i]) for i in indices]
    return tables.levels, kept


def _timed(version: Version, table: NDArray[np.int64]) -> Version:
    latency = tuple(tuple(tuple(row) for row in rows) for rows in table.tolist())
    return Version(version.point, version.symbol, version.object_file, version.block_size, version.parallelism, latency)


class _Layer:
    """One distinct code: builds and checks its versions."""

    def __init__(self, spec: LayerSpec, batches: Sequence[int], meter: Meter, setting: Setting, scratch: Path) -> None:
        self._spec, self._batches, self._meter, self._setting, self._scratch = spec, batches, meter, setting, scratch
        sizes = sorted({1, min(3, batches[-1]), batches[-1]})  # 3: tiles of rows that do not come out even
        self._checks = [Check(spec, size, setting.bounds) for size in sizes]
        self._verdicts: dict[tuple[tuple[str, int | str], ...], _Draft | str] = {}  # by point

    def drafts(self, candidates: Sequence[Candidate], share_ns: float, progress: Progress) -> list[_Draft]:
        """The selected versions; where one is wrong, it is left out and the selection made again without it."""
        while candidates:
            selected = frontier.select(candidates, share_ns)
            verdicts = [self._verdict(candidate, progress) for candidate in selected]
            drafts = [verdict for verdict in verdicts if isinstance(verdict, _Draft)]
            if len(drafts) == len(verdicts):
                return drafts
            candidates = [c for c in candidates if not isinstance(self._verdicts.get(_key(c.point)), str)]
        faults = "; ".join(v for v in self._verdicts.values() if isinstance(v, str))
        raise VeltairError(f"layer {self._spec.name} ({self._spec.workload}): no version is right: {faults[:1000]}")

    def _verdict(self, candidate: Candidate, progress: Progress) -> _Draft | str:
        key = _key(candidate.point)
        if key not in self._verdicts:
            verdict = self._build(candidate)
            if isinstance(verdict, str):
                progress.console.print(f"left out: {verdict}", style="yellow", highlight=False)
            self._verdicts[key] = verdict
        return self._verdicts[key]

    def _build(self, candidate: Candidate) -> _Draft | str:
        """A draft, or what is wrong with the candidate."""
        spec, setting = self._spec, self._setting
        symbol = f"{spec.symbol}_{len(self._verdicts)}"
        path, library = self._scratch / f"{symbol}.o", self._scratch / f"{symbol}.so"
        kernel = setting.spaces[spec.op].build(spec, candidate.point, setting.features)
        weights = self._meter.weights(kernel)
        try:
            compile_object(kernel.function, symbol, setting.target, path)
            link([path], library)
            for check in self._checks:
                for count in sorted({1, len(self._meter.cores)}):
                    fault = check.fault(self._meter, library, symbol, weights, count)
                    if fault:
                        return f"{symbol}: {fault}"
        except (BuildError, CandidateError) as error:
            return str(error)
        version = Version(candidate.point, symbol, path, kernel.block_size, kernel.parallelism)
        operands = tuple(
            (*input_operands(spec, batch, setting.bounds), *weights, *result_operands(spec, batch))
            for batch in self._batches
        )
        return _Draft(version, library, operands)


def _key(point: Point) -> tuple[tuple[str, int | str], ...]:
    return tuple(sorted(point.items()))
