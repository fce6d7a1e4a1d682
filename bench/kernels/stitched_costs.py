"""Fits the cost model of stitched kernels to measured times.

    python -m bench.kernels.stitched_costs [--target avx512] [--models NAME …]

The times are those of the tuning records that ship: of every point of stitched layers that models of the zoo have, on
one core and on two. Run it on the CPU that they are of, whose caches it reads. Printed are the costs that fit best
(`cost_models.COSTS`), how far estimates are from times, how much slower the points are that the model would choose
than the best measured ones, and the time of the layer norm of `kernels/rows` over that of its stitched program
(`alternatives.ANCHOR_RATIO`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.stitch.alternatives import estimate_ns, stitched
from veltair.compiler.stitch.cost_models import COSTS, KernelCosts
from veltair.compiler.stitch.iteration_space import IterationSpace, at_batch
from veltair.compiler.stitch.stitched_parameters import StitchedParameters
from veltair.compiler.stitch.stitched_space import point_ns
from veltair.profiles.records.tuning_records import SHIPPED, TuningRecord, read_records
from veltair.zoo.registry import write

MODELS = ("dien", "deepfm", "wide_deep", "ssd_mobilenet", "ssd300", "bert_base", "bert_large")
ROWS = 1000  # of each table: they do not matter here
LEAST = (10.0, 10.0, 1.0, 0.05, 0.05)  # where the search for each cost begins, at least
NOTHING = KernelCosts(0.0, 0.0, 0.0, 0.0, 0.0)
UNITS = [replace(NOTHING, **{field.name: 1.0}) for field in fields(KernelCosts)]


class MeasuredPoint(NamedTuple):
    """A record and the spaces of its layer at the record's batch."""

    record: TuningRecord
    domains: Sequence[IterationSpace]


def layers_of(models: Sequence[str], folder: Path) -> Iterator[LayerSpec]:
    """The layers of models of the zoo, in fp32."""
    for name in models:
        path = folder / f"{name}.onnx"
        write(name, path, rows=ROWS if name in ("dien", "deepfm", "wide_deep") else None)
        yield from lower(load_model(path), "fp32").layers


def features(point: MeasuredPoint, cores: int) -> list[float]:
    """What each cost is multiplied by."""
    return [point_ns(point.domains, point.record.point, cores, unit) for unit in UNITS]


def fit(points: Sequence[MeasuredPoint]) -> KernelCosts:
    """The costs of the smallest squares of the logarithms of estimates over times, found one cost at a time."""
    counts, times = list[list[float]](), list[float]()
    for point in points:
        for cores, ns in enumerate(point.record.run_ns, 1):
            counts.append(features(point, cores))
            times.append(float(ns))
    rows, logs = np.array(counts), np.log(times)

    def loss(costs: NDArray[np.float64]) -> float:
        return float(np.square(np.log(rows @ costs) - logs).mean())

    found = np.maximum(np.array(astuple(COSTS)), LEAST)
    step = 2.0
    while step > 1.01:
        trials = [
            found * np.where(np.arange(len(found)) == k, f, 1) for k in range(len(found)) for f in (step, 1 / step)
        ]
        best = min(trials, key=loss)
        found, step = (best, step) if loss(best) < loss(found) else (found, step**0.5)
    return KernelCosts(*found.tolist())


def report(name: str, points: Sequence[MeasuredPoint], costs: KernelCosts) -> None:
    errors, chosen = list[float](), list[float]()
    workloads: dict[str, list[MeasuredPoint]] = {}
    for point in points:
        workloads.setdefault(point.record.workload, []).append(point)
        for cores, time in enumerate(point.record.run_ns, 1):
            estimate = point_ns(point.domains, point.record.point, cores, costs)
            errors.append(max(estimate / time, time / estimate))
    for group in workloads.values():
        cores = len(group[0].record.run_ns)
        pick = min(group, key=lambda p: point_ns(p.domains, p.record.point, cores, costs))
        chosen.append(pick.record.run_ns[-1] / min(p.record.run_ns[-1] for p in group))
    print(f"{name}: {', '.join(f'{f.name} {v:.4g}' for f, v in zip(fields(costs), astuple(costs), strict=True))}")
    print(f"  off by {median(errors):.2f}x in the median, {np.quantile(errors, 0.9):.2f}x at 90 %")
    print(f"  its choice takes {geometric_mean(chosen):.3f}x the best point ({len(workloads)} workloads)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="avx512")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    options = parser.parse_args()
    records = [record for record in read_records(SHIPPED / f"{options.target}.jsonl") if record.run_ns]
    points, anchors, seen = list[MeasuredPoint](), list[float](), set[str]()
    with tempfile.TemporaryDirectory() as folder:
        for spec in layers_of(options.models, Path(folder)):
            own = [] if spec.workload in seen else [r for r in records if r.workload == spec.workload]
            seen.add(spec.workload)
            if spec.op == "stitched":
                domains = spec.parameters_as(StitchedParameters).domains
                points += [MeasuredPoint(r, [at_batch(d, r.batch) for d in domains]) for r in own]
            elif spec.op == "layer_norm" and own:
                (same,) = stitched(spec)
                estimate = estimate_ns(same, own[0].batch) or 0.0
                anchors.append(min(record.best_ns for record in own) / estimate)
    print(f"{len(points)} points of stitched layers, {len(anchors)} layer norms")
    report("as it is", points, COSTS)
    report("fitted", points, fit(points))
    print("layer norms over the estimates of their stitched programs:", *(f"{ratio:.2f}" for ratio in anchors))


if __name__ == "__main__":
    main()
