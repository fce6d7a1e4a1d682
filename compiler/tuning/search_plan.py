"""The plan of a search: what is known of a workload, and which points of its design space to measure next. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from math import log2

from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.setting import Setting
from veltair.compiler.tuning.transfer import comparable_records, parse_workload, transfer_points
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

TRIALS = 64  # candidates of a workload without records
AGAIN = 4  # of the best points of another CPU's records, measured here
CHUNK = 8  # candidates built, then measured, together
TVM = metadata.version("apache-tvm")
FAILED_NS = 1 << 62  # the time of a candidate that failed


@dataclass(slots=True)
class SearchPlan:
    """What is known of a workload, and how much of it is to be measured. `plan_search` makes it.

    >>> spec = LayerSpec("softmax_0", "softmax", (), (), weights={}, flops=0)
    >>> SearchPlan(spec, [{"unroll": 1}, {"unroll": 2}], records=[], foreign=(), budget=64).left
    2
    """

    spec: LayerSpec
    points: Sequence[Point]
    records: list[TuningRecord]  # of this CPU and TVM
    foreign: Sequence[TuningRecord]  # the best of another CPU or TVM
    budget: int  # records to have in the end
    origins: dict[int, str] = field(default_factory=dict)  # by index of a measured point: how the search came by it

    @property
    def left(self) -> int:
        """Points still to be measured."""
        return max(min(self.budget, len(self.points)) - len(self.records), 0)

    @property
    def times(self) -> dict[int, int]:
        """The best ns of each point that was measured, by its index."""
        return {self.points.index(r.point): r.best_ns if r.run_ns else FAILED_NS for r in self.records}

    @property
    def candidates(self) -> list[Candidate]:
        """The points that worked, and how the search came by them."""
        return [
            Candidate(
                r.point, r.block_size, r.parallelism, r.run_ns, self.origins.get(self.points.index(r.point), "record")
            )
            for r in self.records
            if r.run_ns
        ]

    def first_points(self, store: RecordStore) -> tuple[Sequence[int], str]:
        """Indices of the points to begin with, and a phrase that says where they come from."""
        if self.foreign:
            return [self.points.index(record.point) for record in self.foreign], "of another CPU or TVM"
        taken = transfer_points(self.spec.workload, self.points, store.everything)
        return (taken.indices, f"of {parse_workload(taken.source).brief}") if taken else ((), "")


def plan_search(spec: LayerSpec, store: RecordStore, setting: Setting, trials: int | None) -> SearchPlan:
    """The plan for one workload, from the records of it. trials: see `search`."""
    points = setting.spaces[spec.op].points(spec, setting.features)
    shipped, own = store.shipped(spec.workload), store.own(spec.workload)
    done = _known((r for r in shipped if _is_native(r, setting)), setting.batch, points)
    if any(record.run_ns for record in done):
        return SearchPlan(spec, points, done, (), 0, {points.index(record.point): "shipped record" for record in done})
    records = _known((r for r in own if _is_native(r, setting)), setting.batch, points)
    fitting = (r for r in (*shipped, *own) if not _is_native(r, setting) and r.point in points)
    foreign = comparable_records(fitting)[:AGAIN]
    budget = trials if trials is not None else AGAIN if foreign else TRIALS
    return SearchPlan(spec, points, records, foreign, max(budget, 1))


def is_recorded(spec: LayerSpec, store: RecordStore, setting: Setting) -> bool:
    """Whether candidates of a workload were measured on this CPU with this TVM, even if none of them worked."""
    points = setting.spaces[spec.op].points(spec, setting.features)
    known = (*store.shipped(spec.workload), *store.own(spec.workload))
    return any(r.point in points and _is_native(r, setting) for r in known)


def propose_points(
    points: Sequence[Point],
    times: Mapping[int, int],
    trials: int,
    seed: str,
    chunk: int = CHUNK,
    first: Sequence[int] = (),
) -> list[int]:
    """Indices of the points to measure next; empty when `trials` are measured.

    times: the best ns of each measured point, by index (FAILED_NS of a failed one).
    first: the points to begin with.

    A space no larger than `trials` is measured whole. Of a larger one follow, after the first points, the default and a
    seeded sample (half of the trials, the first included), then the neighbours of the best. The result depends only on
    the arguments, so an interrupted search continues as if there had been no interruption.
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
            wanted = [i for best in ranked for i in find_neighbours(points, best)] + others
    fresh = dict.fromkeys(i for i in wanted if i not in times)
    return list(fresh)[: min(left, chunk)]


def find_neighbours(points: Sequence[Point], at: int) -> list[int]:
    """Indices of the points that differ from one in one coordinate, by one step among the values of the coordinate.

    >>> find_neighbours([{"unroll": 1}, {"unroll": 2}, {"unroll": 4}], 0)
    [1]
    """
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


def _is_native(record: TuningRecord, setting: Setting) -> bool:
    """Whether a record's time is that of the same code on this CPU; that of AVX2 code is not that of AVX-512 code."""
    return (record.cpu, record.tvm) == (setting.cpu, TVM) and not _is_narrower(record, setting)


def _is_narrower(record: TuningRecord, setting: Setting) -> bool:
    return "avx512" in setting.features and "avx512" not in record.features


def describe_origin(record: TuningRecord, setting: Setting) -> str:
    """The CPU, TVM and instruction sets that a record is of, in words."""
    without = " without AVX-512" if _is_narrower(record, setting) else ""
    return f"{record.cpu} with TVM {record.tvm}{without}"


def _known(records: Iterable[TuningRecord], batch: int, points: Sequence[Point]) -> list[TuningRecord]:
    """Records whose points are in the space, the newest of each, at the recorded batch size nearest to `batch`."""
    fitting = [record for record in records if record.point in points]
    if not fitting:
        return []
    nearest = min((record.batch for record in fitting), key=lambda b: abs(log2(b) - log2(batch)))
    newest = {tuple(sorted(r.point.items())): r for r in fitting if r.batch == nearest}
    return list(newest.values())
