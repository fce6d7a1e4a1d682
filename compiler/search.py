"""Measures the design space of every distinct workload that has no records yet.

Each candidate is recorded the moment it was measured, so a search that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from math import log2
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from veltair.compiler.frontier import Candidate
from veltair.compiler.ir import Kernel, LayerSpec, Point, Space
from veltair.compiler.library import Source, compile_objects, link
from veltair.compiler.measure import Bounds, CandidateError, Meter, input_operands, result_operands
from veltair.errors import VeltairError
from veltair.profiles.records import RecordStore, TuningRecord

CHUNK = 8  # candidates built, then measured, together
HOPELESS = 4  # times the best so far, on one core instead of all: such a candidate is not measured long


@dataclass(frozen=True, slots=True)
class Setting:
    """What a search runs on."""

    target: Mapping[str, Any]  # TVM's
    features: frozenset[str]
    cpu: str
    precision: str  # "fp32" or "bf16"
    batch: int  # size of a dynamic batch that is timed
    bounds: Bounds
    spaces: Mapping[str, Space]


def search(
    specs: Sequence[LayerSpec], store: RecordStore, meter: Meter, setting: Setting, trials: int, progress: Progress
) -> dict[str, list[Candidate]]:
    """Measured candidates of each workload, from records where there are any; never an empty list.

    Shipped records count as a search that is done. Own ones do when there are as many as asked for, so a larger
    `trials` goes on from them. With 0 trials the default point alone is measured.

    Raises VeltairError for a workload none of whose candidates works.
    """
    distinct = {spec.workload: spec for spec in reversed(specs)}  # the first of equals
    order = list(dict.fromkeys(spec.workload for spec in specs))
    task = progress.add_task("search", total=len(order))
    found: dict[str, list[Candidate]] = {}
    for number, workload in enumerate(order, 1):
        spec = distinct[workload]
        points = setting.spaces[spec.op].points(spec, setting.features)
        heading = f"search: layer {number} of {len(order)}, {spec.op}"
        records = _known(store.shipped(workload), setting.batch, points)
        if not any(record.run_ns for record in records):
            budget = min(len(points), max(trials, 1))
            records = _known(store.own(workload), setting.batch, points)
            _describe(progress, task, heading, records)
            while chosen := proposals(points, _times(records, points), budget, workload):
                for record in _measure(spec, [points[i] for i in chosen], meter, setting, records):
                    store.append(record)
                    records.append(record)
                    _describe(progress, task, heading, records, f"{len(records)}/{budget}")
        found[workload] = [Candidate(r.point, r.block_size, r.parallelism, r.run_ns) for r in records if r.run_ns]
        if not found[workload]:
            raise VeltairError(f"layer {spec.name} ({workload}): no candidate works; the last said {records[-1].error}")
        progress.advance(task)
    return found


def proposals(
    points: Sequence[Point], times: Mapping[int, int], trials: int, seed: str, chunk: int = CHUNK
) -> list[int]:
    """Indices of the points to measure next; empty when `trials` are measured.

    times: index -> best ns of the measured ones (a failed one: a huge time). A space no larger than `trials` is
    measured whole; of a larger one first the default and a seeded sample, half of the trials, then the neighbours
    of the best. It depends on its arguments alone, so an interrupted search goes on as if it had not been.
    """
    left = min(trials, len(points)) - len(times)
    if left <= 0:
        return []
    if len(points) <= trials:
        wanted = list(range(len(points)))
    else:
        others = list(range(1, len(points)))
        random.Random(seed).shuffle(others)
        sample = [0, *others[: trials // 2]]
        wanted = [i for i in sample if i not in times]
        if not wanted:
            chunk = min(chunk, 4)  # few at a time: each may move the best
            ranked = sorted(times, key=lambda i: times[i])
            wanted = [i for best in ranked for i in neighbours(points, best)] + others
    fresh = dict.fromkeys(i for i in wanted if i not in times)
    return list(fresh)[: min(left, chunk)]


def neighbours(points: Sequence[Point], at: int) -> list[int]:
    """Points that differ in one coordinate, by one step among the values which that coordinate takes."""
    here = points[at]
    steps: dict[str, list[int | str]] = {}
    for name in here:
        steps[name] = sorted({point[name] for point in points if name in point}, key=lambda v: (isinstance(v, str), v))
    found = []
    for i, point in enumerate(points):
        changed = [name for name in here if point.get(name) != here[name]]
        if len(changed) == 1 and point.keys() == here.keys():
            values = steps[changed[0]]
            if abs(values.index(point[changed[0]]) - values.index(here[changed[0]])) == 1:
                found.append(i)
    return found


def _known(records: Sequence[TuningRecord], batch: int, points: Sequence[Point]) -> list[TuningRecord]:
    """Records that fit the present space, one a point, of the batch size nearest to the wanted one."""
    fitting = [record for record in records if record.point in points]
    if not fitting:
        return []
    nearest = min((record.batch for record in fitting), key=lambda b: abs(log2(b) - log2(batch)))
    newest = {tuple(sorted(r.point.items())): r for r in fitting if r.batch == nearest}
    return list(newest.values())


def _times(records: Sequence[TuningRecord], points: Sequence[Point]) -> dict[int, int]:
    return {points.index(r.point): r.best_ns if r.run_ns else 1 << 62 for r in records}


def _measure(
    spec: LayerSpec, points: Sequence[Point], meter: Meter, setting: Setting, known: Sequence[TuningRecord]
) -> Iterator[TuningRecord]:
    """Build the points, then time them; one record each, as soon as there is one."""
    limit = min((r.best_ns for r in known if r.run_ns), default=0) * HOPELESS * len(meter.cores)
    with tempfile.TemporaryDirectory(prefix="veltair-search-") as folder:
        built = []
        for number, point in enumerate(points):
            kernel = setting.spaces[spec.op].build(spec, point, setting.features)
            built.append(
                (point, kernel, Source(kernel.function, f"{spec.symbol}_{number}", Path(folder, f"{number}.o")))
            )
        faults = compile_objects([source for *_, source in built], setting.target)
        library = Path(folder, "candidates.so")
        link([source.path for (*_, source), fault in zip(built, faults, strict=True) if not fault], library)
        for (point, kernel, source), fault in zip(built, faults, strict=True):
            if fault:
                yield _record(spec, point, kernel, (), setting, fault)
                continue
            operands = [*input_operands(spec, setting.batch, setting.bounds), *meter.weights(kernel)]
            operands += result_operands(spec, setting.batch)
            try:
                run_ns = tuple(meter.time(library, source.symbol, operands, limit_ns=limit))
            except CandidateError as error:
                yield _record(spec, point, kernel, (), setting, str(error))
            else:
                yield _record(spec, point, kernel, run_ns, setting)
        meter.forget()


def _record(
    spec: LayerSpec, point: Point, kernel: Kernel, run_ns: tuple[int, ...], setting: Setting, error: str = ""
) -> TuningRecord:
    return TuningRecord(
        workload=spec.workload,
        batch=setting.batch,
        point=point,
        run_ns=run_ns,
        block_size=kernel.block_size,
        parallelism=kernel.parallelism,
        features=tuple(sorted(setting.features)),
        cpu=setting.cpu,
        tvm=metadata.version("apache-tvm"),
        error=error,
    )


def _describe(progress: Progress, task: TaskID, heading: str, records: Sequence[TuningRecord], count: str = "") -> None:
    best = min((r.best_ns for r in records if r.run_ns), default=0)
    parts = [heading, count, f"best {best / 1000:.0f} us" if best else ""]
    progress.update(task, description=", ".join(part for part in parts if part))
