"""Search: measures the design space of every distinct workload that has no records of this CPU yet.

Each candidate is recorded as soon as it is measured, so an interrupted search continues where it stopped. Records of
another CPU or TVM, and those of similar workloads, only say where to look first; their times are not used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from rich.markup import escape
from rich.progress import Progress

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point, version_symbol
from veltair.compiler.graph.parameters.fallback import OnnxRuntimeParameters
from veltair.compiler.shared_library import ObjectFile, link_library
from veltair.compiler.timing.measure import CandidateError, CandidateHangsError, Meter, result_operands
from veltair.compiler.tuning.cache_keys import object_key
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.kernel_cache import KernelCache
from veltair.compiler.tuning.search_plan import TVM, SearchPlan, describe_origin, plan_search, propose_points
from veltair.compiler.tuning.setting import Setting
from veltair.errors import ModelError, VeltairError
from veltair.machine.scratch import ScratchFolder
from veltair.profiles.artifact.manifest import ONNX_LAYER
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

HOPELESS = 4  # times the best so far, on one core instead of all: such a candidate is not measured long

log = logging.getLogger(__name__)


def search(
    specs: Sequence[LayerSpec],
    store: RecordStore,
    meter: Meter,
    setting: Setting,
    trials: int | None,
    progress: Progress,
    objects: Path | None = None,
    cache: KernelCache | None = None,
    optional: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, list[Candidate]]:
    """Candidates of each workload, measured on this CPU with this TVM, now or in the records; never an empty list.

    Shipped records of this CPU count as a complete search. The user's own do when there are as many as asked for, so a
    larger `trials` continues from them.

    Args:
        trials: candidates to measure of each workload; by default TRIALS, or AGAIN where another CPU's records name
            some. With 0, only the points that records name are measured: the best point of another CPU's, else those
            of a similar workload and the default point, else the default point.
        objects: a folder for object files, where whoever builds versions afterwards finds them; by default, none stays.
        cache: where objects of earlier compiles are found; none is added, since few of the candidates are ever wanted
            again.
        optional: workloads that others can stand in for, and how many candidates of each are measured; where none
            works, the list is empty.

    Raises VeltairError for another workload of which no candidate works, ModelError where ONNX Runtime runs it.
    """
    distinct = {spec.workload: spec for spec in reversed(specs)}  # of equal workloads, the first
    order = dict.fromkeys(spec.workload for spec in specs)
    plans = [plan_search(distinct[workload], store, setting, optional.get(workload, trials)) for workload in order]
    _warn_of_foreign(plans, setting)
    timer = _CandidateTimer(store, meter, setting, objects, cache or KernelCache())
    shown = _ProgressLine(progress, sum(plan.left for plan in plans))
    found: dict[str, list[Candidate]] = {}
    for number, plan in enumerate(plans, 1):
        workload, spec = plan.spec.workload, plan.spec
        if plan.left:
            shown.heading = f"search: layer {number} of {len(plans)}, {spec.op}"
            _carry_out(plan, timer, shown, only_named=trials == 0)
        if not any(record.run_ns for record in plan.records) and 0 not in plan.times:
            _fall_back_on_default(plan, timer)
        found[workload] = plan.candidates
        if not found[workload] and workload not in optional:
            why = plan.records[-1].error
            if spec.op == ONNX_LAYER:
                raise _not_run(spec, why)
            raise VeltairError(f"layer {spec.name} ({workload}): no candidate works; the last said {why}")
    return found


def _carry_out(plan: SearchPlan, timer: _CandidateTimer, shown: _ProgressLine, *, only_named: bool) -> None:
    """Measure the points that the plan has left. `only_named`: without another CPU's records, those of a similar
    workload and the default point alone.
    """
    first, source = plan.first_points(timer.store)
    if only_named and not plan.foreign:
        left = plan.left
        plan.budget = len({0, *first})
        shown.change_total(plan.left - left)
    promising = [plan.points[i] for i in first]
    shown.describe(plan, promising, source)
    while chosen := propose_points(plan.points, plan.times, plan.budget, plan.spec.workload, first=first):
        plan.origins |= {i: f"best {source}" if i in first else "default" if i == 0 else "searched" for i in chosen}
        timer.measure(plan, [plan.points[i] for i in chosen], partial(shown.advance, plan, promising, source))


def _fall_back_on_default(plan: SearchPlan, timer: _CandidateTimer) -> None:
    """Measure the default point of a workload of which no recorded point works."""
    why = plan.records[-1].error if plan.records else "there are none"
    text = "layer %s (%s): no point that records name works here, the default is taken: %s"
    log.warning(text, plan.spec.name, plan.spec.workload, why)
    plan.origins[0] = "default, since no recorded point works"
    timer.measure(plan, plan.points[:1])


def _warn_of_foreign(plans: Sequence[SearchPlan], setting: Setting) -> None:
    known = [[record.point for record in plan.records] for plan in plans]
    used = [[r for r in p.foreign if p.left and r.point not in k] for p, k in zip(plans, known, strict=True)]
    if any(used):
        places = sorted({describe_origin(record, setting) for records in used for record in records})
        text = (
            "the tuning records of %d of %d workloads are of %s, this is %s with TVM %s: "
            "their best points are measured here again"
        )
        log.warning(text, sum(map(bool, used)), len(plans), ", ".join(places), setting.cpu, TVM)


@dataclass(frozen=True, slots=True)
class _CandidateTimer:
    """How the candidates of all workloads of a search are built, timed and recorded."""

    store: RecordStore
    meter: Meter
    setting: Setting
    objects: Path | None  # a folder for object files; None: none stays
    cache: KernelCache

    def measure(self, plan: SearchPlan, points: Sequence[Point], tick: Callable[[], None] = lambda: None) -> None:
        """Build the points, then time them; each record is in the plan and in the store as soon as it is measured.

        `tick` is called after each.
        """
        spec, setting, meter = plan.spec, self.setting, self.meter
        limit = min((r.best_ns for r in plan.records if r.run_ns), default=0) * HOPELESS * len(meter.cores)
        with ScratchFolder("search") as folder:
            built = []
            for point in points:
                kernel = setting.spaces[spec.op].build(spec, point, setting.features)
                symbol = version_symbol(spec, point)
                file = (self.objects or folder) / f"{symbol}.o"
                built.append((point, kernel, ObjectFile(kernel.function, symbol, file)))
            keys = [object_key(spec, point, kernel, setting) for point, kernel, _ in built]
            faults = self.cache.compile([source for *_, source in built], keys, setting.target)
            library = folder / "candidates.so"
            compiled = [source.path for (*_, source), fault in zip(built, faults, strict=True) if not fault]
            if compiled:
                link_library(compiled, library)
            for (point, kernel, source), fault in zip(built, faults, strict=True):
                run_ns: tuple[int, ...] = ()
                if not fault:
                    try:
                        run_ns = self._time(spec, kernel, library, source.symbol, limit)
                    except CandidateError as error:
                        if spec.op == ONNX_LAYER and isinstance(error, CandidateHangsError):  # nothing is recorded:
                            raise _not_run(spec, f"{error}; a Loop may have no end") from None  # it may be busy now
                        fault = str(error)
                record = _record(spec, point, kernel, run_ns, setting, fault)
                self.store.append(record)
                plan.records.append(record)
                tick()
            meter.forget()

    def _time(self, spec: LayerSpec, kernel: Kernel, library: Path, symbol: str, limit_ns: int) -> tuple[int, ...]:
        """Raises CandidateError."""
        meter, setting = self.meter, self.setting
        operands = [*meter.inputs(spec, setting.batch, setting.bounds), *meter.weights(kernel)]
        operands += result_operands(spec, setting.batch)
        return tuple(meter.time(library, symbol, operands, limit_ns=limit_ns))


def _not_run(spec: LayerSpec, error: str) -> ModelError:
    """No kernel of ours has a part in it: the fault is the file's."""
    operators = spec.parameters_as(OnnxRuntimeParameters).operators
    return ModelError(f"layer {spec.name}: ONNX Runtime runs {operators:.200}: {error}")


def _record(
    spec: LayerSpec, point: Point, kernel: Kernel, run_ns: tuple[int, ...], setting: Setting, error: str
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


class _ProgressLine:
    """The line of the search in the progress display; it counts candidates."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._task = progress.add_task("search", total=total, visible=total > 0)
        self.heading = ""

    def change_total(self, by: int) -> None:
        self._total += by
        self._progress.update(self._task, total=self._total)

    def advance(self, plan: SearchPlan, first: Sequence[Point], source: str) -> None:
        self._progress.advance(self._task)
        self.describe(plan, first, source)

    def describe(self, plan: SearchPlan, first: Sequence[Point], source: str) -> None:
        """`source`: where the first points come from, shown until they are measured."""
        measured = [record.point for record in plan.records]
        best = min((r.best_ns for r in plan.records if r.run_ns), default=0)
        parts = [self.heading, f"trial {len(measured)}/{len(measured) + plan.left}"]
        parts += [f"best {best / 1000:.1f} us"] if best else []
        parts += [f"points {source} first"] if any(point not in measured for point in first) else []
        self._progress.update(self._task, description=escape(", ".join(parts)))
