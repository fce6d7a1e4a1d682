"""Measures the design space of every distinct workload that has no records of this CPU yet.

Each candidate is recorded the moment it was measured, so a search that was interrupted goes on where it stopped.
Records of another CPU or TVM, and those of similar workloads, say where to look first; their times count for nothing.
"""

from __future__ import annotations

import logging
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from math import log2
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.progress import Progress, TaskID

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point, Space
from veltair.compiler.shared_library import Source, compile_objects, link
from veltair.compiler.timing.measure import Bounds, CandidateError, Meter, result_operands
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.transfer import comparable, parse, transfer
from veltair.errors import VeltairError
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

TRIALS = 64  # candidates of a workload without records
AGAIN = 4  # of the best points of another CPU's records, measured here
CHUNK = 8  # candidates built, then measured, together
HOPELESS = 4  # times the best so far, on one core instead of all: such a candidate is not measured long
TVM = metadata.version("apache-tvm")

log = logging.getLogger(__name__)


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


@dataclass(slots=True)
class _Plan:
    """What is known of a workload, and how much of it is to be measured."""

    spec: LayerSpec
    points: Sequence[Point]
    records: list[TuningRecord]  # of this CPU and TVM
    foreign: Sequence[TuningRecord]  # the best of another's
    budget: int  # records to have in the end
    origins: dict[int, str] = field(default_factory=dict)  # by index of a point that was measured: how we came by it

    @property
    def left(self) -> int:
        return max(min(self.budget, len(self.points)) - len(self.records), 0)


def search(
    specs: Sequence[LayerSpec],
    store: RecordStore,
    meter: Meter,
    setting: Setting,
    trials: int | None,
    progress: Progress,
) -> dict[str, list[Candidate]]:
    """Candidates of each workload, measured on this CPU with this TVM, now or for the records; never an empty list.

    Shipped records of this CPU count as a search that is done. Own ones do when there are as many as asked for, so a
    larger `trials` goes on from them.

    Args:
        trials: candidates to measure of each workload; by default TRIALS, or AGAIN where another CPU's records say
            which. With 0 they are those alone that such records say: the best point of another CPU's, else those of
            a similar workload with the default point, else the default point.

    Raises VeltairError for a workload none of whose candidates works.
    """
    distinct = {spec.workload: spec for spec in reversed(specs)}  # the first of equals
    order = dict.fromkeys(spec.workload for spec in specs)
    plans = [_plan(distinct[workload], store, setting, trials) for workload in order]
    _warn_of_foreign(plans, setting)
    total = sum(plan.left for plan in plans)
    task = progress.add_task("search", total=total, visible=total > 0)
    found: dict[str, list[Candidate]] = {}
    for number, (workload, plan) in enumerate(zip(order, plans, strict=True), 1):
        spec, records = plan.spec, plan.records
        if plan.left:
            first, source = _first_points(plan, store)
            if trials == 0 and not plan.foreign:
                total -= plan.left
                plan.budget = len({0, *first})
                total += plan.left
                progress.update(task, total=total)
            heading = f"search: layer {number} of {len(order)}, {spec.op}"
            promising = [plan.points[i] for i in first]
            _describe(progress, task, heading, plan, promising, source)
            while chosen := proposals(plan.points, _times(plan), plan.budget, workload, first=first):
                plan.origins |= {
                    i: f"best {source}" if i in first else "default" if i == 0 else "searched" for i in chosen
                }
                for record in _measure(spec, [plan.points[i] for i in chosen], meter, setting, records):
                    store.append(record)
                    records.append(record)
                    progress.advance(task)
                    _describe(progress, task, heading, plan, promising, source)
        if not any(record.run_ns for record in records) and 0 not in _times(plan):
            why = records[-1].error if records else "there are none"
            log.warning(
                "layer %s (%s): no point that records named works here, the default is taken: %s",
                spec.name, workload, why,
            )  # fmt: skip
            plan.origins[0] = "default, since no recorded point works"
            for record in _measure(spec, plan.points[:1], meter, setting, records):
                store.append(record)
                records.append(record)
        found[workload] = _candidates(plan)
        if not found[workload]:
            raise VeltairError(f"layer {spec.name} ({workload}): no candidate works; the last said {records[-1].error}")
    return found


def _candidates(plan: _Plan) -> list[Candidate]:
    """Those that worked, and how the search came by them."""
    return [
        Candidate(
            r.point, r.block_size, r.parallelism, r.run_ns, plan.origins.get(plan.points.index(r.point), "record")
        )
        for r in plan.records
        if r.run_ns
    ]


def proposals(
    points: Sequence[Point],
    times: Mapping[int, int],
    trials: int,
    seed: str,
    chunk: int = CHUNK,
    first: Sequence[int] = (),
) -> list[int]:
    """Indices of the points to measure next; empty when `trials` are measured.

    times: index -> best ns of the measured ones (a failed one: a huge time). `first` come first. A space no larger
    than `trials` is measured whole; of a larger one then the default and a seeded sample, half of the trials with
    the first, then the neighbours of the best. It depends on its arguments alone, so an interrupted search goes on as
    if it had not been.
    """
    left = min(trials, len(points)) - len(times)
    if left <= 0:
        return []
    if len(points) <= trials:
        wanted = [*first, *range(len(points))]
    else:
        others = list(range(1, len(points)))
        random.Random(seed).shuffle(others)
        sample = [*first, 0, *others[: max(trials // 2 - len(first), 0)]]
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


def _plan(spec: LayerSpec, store: RecordStore, setting: Setting, trials: int | None) -> _Plan:
    points = setting.spaces[spec.op].points(spec, setting.features)
    shipped, own = store.shipped(spec.workload), store.own(spec.workload)
    done = _known((r for r in shipped if _is_native(r, setting)), setting.batch, points)
    if any(record.run_ns for record in done):
        return _Plan(spec, points, done, (), 0, {points.index(record.point): "shipped record" for record in done})
    records = _known((r for r in own if _is_native(r, setting)), setting.batch, points)
    fitting = (r for r in (*shipped, *own) if not _is_native(r, setting) and r.point in points)
    foreign = comparable(fitting)[:AGAIN]
    budget = trials if trials is not None else AGAIN if foreign else TRIALS
    return _Plan(spec, points, records, foreign, max(budget, 1))


def _is_native(record: TuningRecord, setting: Setting) -> bool:
    """Whether its time is that of the same code here. Code for AVX2 says where code for AVX-512 may look, no more."""
    return (record.cpu, record.tvm) == (setting.cpu, TVM) and not _is_narrower(record, setting)


def _is_narrower(record: TuningRecord, setting: Setting) -> bool:
    return "avx512" in setting.features and "avx512" not in record.features


def _place(record: TuningRecord, setting: Setting) -> str:
    without = " without AVX-512" if _is_narrower(record, setting) else ""
    return f"{record.cpu} with TVM {record.tvm}{without}"


def _first_points(plan: _Plan, store: RecordStore) -> tuple[Sequence[int], str]:
    """Indices of the points to begin with, and a word on where they come from."""
    if plan.foreign:
        return [plan.points.index(record.point) for record in plan.foreign], "of another CPU or TVM"
    taken = transfer(plan.spec.workload, plan.points, store.everything)
    return (taken.indices, f"of {parse(taken.source).brief}") if taken else ((), "")


def _warn_of_foreign(plans: Sequence[_Plan], setting: Setting) -> None:
    known = [[record.point for record in plan.records] for plan in plans]
    used = [[r for r in p.foreign if p.left and r.point not in k] for p, k in zip(plans, known, strict=True)]
    if any(used):
        places = sorted({_place(record, setting) for records in used for record in records})
        log.warning(
            "the tuning records of %d of %d workloads are of %s, this is %s with TVM %s: their best points are "
            "measured here again",
            sum(map(bool, used)), len(plans), ", ".join(places), setting.cpu, TVM,
        )  # fmt: skip


def _known(records: Iterable[TuningRecord], batch: int, points: Sequence[Point]) -> list[TuningRecord]:
    """Records that fit the present space, one a point, of the batch size nearest to the wanted one."""
    fitting = [record for record in records if record.point in points]
    if not fitting:
        return []
    nearest = min((record.batch for record in fitting), key=lambda b: abs(log2(b) - log2(batch)))
    newest = {tuple(sorted(r.point.items())): r for r in fitting if r.batch == nearest}
    return list(newest.values())


def _times(plan: _Plan) -> dict[int, int]:
    return {plan.points.index(r.point): r.best_ns if r.run_ns else 1 << 62 for r in plan.records}


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
        objects = [source.path for (*_, source), fault in zip(built, faults, strict=True) if not fault]
        if objects:
            link(objects, library)
        for (point, kernel, source), fault in zip(built, faults, strict=True):
            if fault:
                yield _record(spec, point, kernel, (), setting, fault)
                continue
            operands = [*meter.inputs(spec, setting.batch, setting.bounds), *meter.weights(kernel)]
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
        tvm=TVM,
        error=error,
    )


def _describe(progress: Progress, task: TaskID, heading: str, plan: _Plan, first: Sequence[Point], source: str) -> None:
    """source: a word on the first points, told until they are measured."""
    measured = [record.point for record in plan.records]
    best = min((r.best_ns for r in plan.records if r.run_ns), default=0)
    parts = [heading, f"trial {len(measured)}/{len(measured) + plan.left}"]
    parts += [f"best {best / 1000:.1f} us"] if best else []
    parts += [f"points {source} first"] if any(point not in measured for point in first) else []
    progress.update(task, description=escape(", ".join(parts)))
