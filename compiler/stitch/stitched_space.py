"""The design space of a stitched layer: units a task, composition scheme, vectors a step, columns a unit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from veltair.compiler.codegen.prim_func import Operand
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.stitch.cost_models import COSTS, KernelCosts, packed_ns, scratch_bytes, units_of
from veltair.compiler.stitch.iteration_space import SCHEMES, IterationSpace, KernelSchedule
from veltair.compiler.stitch.stitched_kernel import stitched_function
from veltair.compiler.stitch.stitched_parameters import StitchedParameters

ROWS = (1, 4, 16, 64)
COLUMNS = (256, 1024, 4096)  # multiples of every step
STEPS = (2, 4, 1)
OWN = ("scheme", "unroll", "columns")  # what each of packed programs may have its own of
SLICES = (1, 2, 4, 8, 16, 64)  # tasks of a packed kernel, each with a share of every program
SETTINGS = 2  # of each program, the best by the cost model, where packed programs have settings of their own


class StitchedSpace:
    """Design space of layers with `StitchedParameters`.

    A point: `rows` units in a task, composition `scheme`, `unroll` vectors in a step, `columns` of a unit (0: all).
    Packed programs share these, or have `slices` instead of rows and the others by their place: `scheme0`, `scheme1`.

    ::

        avx2 = frozenset({"avx2"})
        point = StitchedSpace().points(spec, avx2)[0]  # the one of the least estimated latency
        kernel = StitchedSpace().build(spec, point, avx2)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        domains = spec.parameters_as(StitchedParameters).domains
        points = _shared_points(domains, spec.max_batch)
        if len(domains) > 1:
            points += _sliced_points(domains, spec.max_batch)
        return sorted(points, key=lambda point: point_ns(domains, point))

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(StitchedParameters)
        weights = tuple(np.ascontiguousarray(w) for w in spec.weights.values())
        operands: list[Operand] = [*spec.inputs, *weights, *spec.outputs]
        programs, slices = _programs(parameters.domains, point), int(point.get("slices", 0))
        function = stitched_function(programs, operands, parameters.names, slices)
        tasks = sum(-(-units_of(d, setting.columns) // setting.rows) for d, setting in programs)
        unroll = max(setting.unroll for _, setting in programs)
        return Kernel(function, weights, max(scratch_bytes(d, s) for d, s in programs), (slices or tasks) * unroll)


def point_ns(domains: Sequence[IterationSpace], point: Point, cores: int = 0, costs: KernelCosts = COSTS) -> float:
    """The estimated time of a point on `cores` cores, by default all."""
    return packed_ns(_programs(domains, point), int(point.get("slices", 0)), cores, costs)


def _shared_points(domains: Sequence[IterationSpace], max_batch: int) -> list[Point]:
    schemes = [
        s
        for i, s in enumerate(SCHEMES)
        if all(any(d.kept(s) != d.kept(other) for d in domains) for other in SCHEMES[:i])
    ]
    width = max(d.extents[-1] for d in domains)
    splits = all(d.splits for d in domains)
    columns = [0, *(c for c in COLUMNS if splits and c < width)]
    serial = max(units_of(d, 0) for d in domains) * max_batch  # a single task, on one core
    rows = dict.fromkeys([*(r for r in ROWS if r < serial), max(serial, 1)])
    return [
        {"rows": r, "scheme": s, "unroll": u, "columns": c}
        for r in rows
        for s in schemes
        for u in STEPS
        if u == 1 or u * 8 < width
        for c in columns
    ]


def _sliced_points(domains: Sequence[IterationSpace], max_batch: int) -> list[Point]:
    """Each program with its best setting, or one of them with the next."""
    ranked = [_best_settings(domain) for domain in domains]
    best = [settings[0] for settings in ranked]
    others = [[*best[:i], s, *best[i + 1 :]] for i, settings in enumerate(ranked) for s in settings[1:]]
    most = max(units_of(d, 0) for d in domains) * max_batch
    return [
        {"slices": slices, **{f"{name}{i}": p[name] for i, p in enumerate(chosen) for name in OWN}}
        for slices in SLICES
        if slices <= most
        for chosen in (best, *others)
    ]


def _best_settings(domain: IterationSpace) -> list[Point]:
    """The best settings of a program by itself, whatever its share."""
    points = sorted(_shared_points([domain], 1), key=lambda point: point_ns([domain], point | {"slices": 1}))
    distinct: dict[tuple[int | str, ...], Point] = {}
    for point in points:
        distinct.setdefault(tuple(point[name] for name in OWN), point)
    return list(distinct.values())[:SETTINGS]


def _programs(domains: Sequence[IterationSpace], point: Point) -> list[tuple[IterationSpace, KernelSchedule]]:
    """The programs of a layer, each with its setting at a point."""
    found = []
    for i, domain in enumerate(domains):
        scheme, unroll, columns = (point.get(f"{name}{i}", point.get(name, 0)) for name in OWN)
        found.append((domain, KernelSchedule(int(point.get("rows", 1)), str(scheme), int(unroll), int(columns))))
    return found
