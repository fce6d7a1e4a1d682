"""Search: measures the design space of every distinct workload that has no records of this CPU yet.

Each candidate is recorded as soon as it is measured, so an interrupted search continues where it stopped. Records of
another CPU or TVM, and those of similar workloads, only say where to look first; their times are not used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.markup import escape
from rich.progress import Progress, TaskID

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
    cache = cache or KernelCache()
    distinct = {spec.workload: spec for spec in reversed(specs)}  # of equal workloads, the first
    order = dict.fromkeys(spec.workload for spec in specs)
    plans = [plan_search(distinct[workload], store, setting, optional.get(workload, trials)) for workload in order]
    _warn_of_foreign(plans, setting)
    total = sum(plan.left for plan in plans)
    task = progress.add_task("search", total=total, visible=total > 0)
    found: dict[str, list[Candidate]] = {}
    for number, (workload, plan) in enumerate(zip(order, plans, strict=True), 1):
        spec, records = plan.spec, plan.records
        if plan.left:
            first, source = plan.first_points(store)
            if trials == 0 and not plan.foreign:
                total -= plan.left
                plan.budget = len({0, *first})
                total += plan.left
                progress.update(task, total=total)
            heading = f"search: layer {number} of {len(order)}, {spec.op}"
            promising = [plan.points[i] for i in first]
            _show_progress(progress, task, heading, plan, promising, source)
            while chosen := propose_points(plan.points, plan.times, plan.budget, workload, first=first):
                plan.origins |= {
                    i: f"best {source}" if i in first else "default" if i == 0 else "searched" for i in chosen
                }
                points = [plan.points[i] for i in chosen]
                for record in _measure(spec, points, meter, setting, records, objects, cache):
                    store.append(record)
                    records.append(record)
                    progress.advance(task)
                    _show_progress(progress, task, heading, plan, promising, source)
        if not any(record.run_ns for record in records) and 0 not in plan.times:
            why = records[-1].error if records else "there are none"
            text = "layer %s (%s): no point that records name works here, the default is taken: %s"
            log.warning(text, spec.name, workload, why)
            plan.origins[0] = "default, since no recorded point works"
            for record in _measure(spec, plan.points[:1], meter, setting, records, objects, cache):
                store.append(record)
                records.append(record)
        found[workload] = plan.candidates
        if not found[workload] and workload not in optional:
            if spec.op == ONNX_LAYER:
                raise _not_run(spec, records[-1].error)
            raise VeltairError(f"layer {spec.name} ({workload}): no candidate works; the last said {records[-1].error}")
    return found


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


def _measure(
    spec: LayerSpec,
    points: Sequence[Point],
    meter: Meter,
    setting: Setting,
    known: Sequence[TuningRecord],
    objects: Path | None,
    cache: KernelCache,
) -> Iterator[TuningRecord]:
    """Build the points, then time them; give a record of each as soon as it is measured."""
    limit = min((r.best_ns for r in known if r.run_ns), default=0) * HOPELESS * len(meter.cores)
    with ScratchFolder("search") as folder:
        built = []
        for point in points:
            kernel, symbol = setting.spaces[spec.op].build(spec, point, setting.features), version_symbol(spec, point)
            built.append((point, kernel, ObjectFile(kernel.function, symbol, (objects or folder) / f"{symbol}.o")))
        keys = [object_key(spec, point, kernel, setting) for point, kernel, _ in built]
        faults = cache.compile([source for *_, source in built], keys, setting.target)
        library = folder / "candidates.so"
        compiled = [source.path for (*_, source), fault in zip(built, faults, strict=True) if not fault]
        if compiled:
            link_library(compiled, library)
        for (point, kernel, source), fault in zip(built, faults, strict=True):
            if fault:
                yield _record(spec, point, kernel, (), setting, fault)
                continue
            operands = [*meter.inputs(spec, setting.batch, setting.bounds), *meter.weights(kernel)]
            operands += result_operands(spec, setting.batch)
            try:
                run_ns = tuple(meter.time(library, source.symbol, operands, limit_ns=limit))
            except CandidateError as error:
                if spec.op == ONNX_LAYER and isinstance(error, CandidateHangsError):  # nothing is recorded: it may
                    raise _not_run(spec, f"{error}; a Loop may have no end") from None  # have been a busy moment
                yield _record(spec, point, kernel, (), setting, str(error))
            else:
                yield _record(spec, point, kernel, run_ns, setting)
        meter.forget()


def _not_run(spec: LayerSpec, error: str) -> ModelError:
    """No kernel of ours has a part in it: the fault is the file's."""
    operators = spec.parameters_as(OnnxRuntimeParameters).operators
    return ModelError(f"layer {spec.name}: ONNX Runtime runs {operators:.200}: {error}")


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


def _show_progress(
    progress: Progress, task: TaskID, heading: str, plan: SearchPlan, first: Sequence[Point], source: str
) -> None:
    """Update the progress line. source: where the first points come from, shown until they are measured."""
    measured = [record.point for record in plan.records]
    best = min((r.best_ns for r in plan.records if r.run_ns), default=0)
    parts = [heading, f"trial {len(measured)}/{len(measured) + plan.left}"]
    parts += [f"best {best / 1000:.1f} us"] if best else []
    parts += [f"points {source} first"] if any(point not in measured for point in first) else []
    progress.update(task, description=escape(", ".join(parts)))
