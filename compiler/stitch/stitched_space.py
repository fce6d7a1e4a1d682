"""The design space of a stitched layer: units a task, composition scheme, vectors a step, columns a unit."""

from __future__ import annotations

import numpy as np

from veltair.compiler.codegen.prim_func import Operand
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.stitch.cost_models import latency_ns, scratch_bytes, units_of
from veltair.compiler.stitch.iteration_space import SCHEMES
from veltair.compiler.stitch.kernel_schedule import KernelSchedule
from veltair.compiler.stitch.stitched_kernel import stitched_function
from veltair.compiler.stitch.stitched_parameters import StitchedParameters

ROWS = (1, 4, 16, 64)
COLUMNS = (256, 1024, 4096)  # multiples of every step
STEPS = (2, 4, 1)


class StitchedSpace:
    """Design space of layers with `StitchedParameters`.

    A point: `rows` units in a task, composition `scheme`, `unroll` vectors in a step, `columns` of a unit (0: all).

    ::

        avx2 = frozenset({"avx2"})
        point = StitchedSpace().points(spec, avx2)[0]  # the one of the least estimated latency
        kernel = StitchedSpace().build(spec, point, avx2)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        domains = spec.parameters_as(StitchedParameters).domains
        schemes = [
            s
            for i, s in enumerate(SCHEMES)
            if all(any(d.kept(s) != d.kept(other) for d in domains) for other in SCHEMES[:i])
        ]
        width = max(d.extents[-1] for d in domains)
        splits = all(d.splits for d in domains)
        columns = [0, *(c for c in COLUMNS if splits and c < width)]
        most = max(units_of(d, 0) for d in domains) * spec.max_batch
        serial = most  # a single task, on one core
        rows = dict.fromkeys([*(r for r in ROWS if r < most), max(serial, 1)])
        points: list[Point] = [
            {"rows": r, "scheme": s, "unroll": u, "columns": c}
            for r in rows
            for s in schemes
            for u in STEPS
            if u == 1 or u * 8 < width
            for c in columns
        ]
        return sorted(points, key=lambda p: sum(latency_ns(d, _setting(p)) for d in domains))

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        domains = spec.parameters_as(StitchedParameters).domains
        setting = _setting(point)
        operands: list[Operand] = [
            *spec.inputs,
            *(np.ascontiguousarray(w) for w in spec.weights.values()),
            *spec.outputs,
        ]
        names = spec.parameters_as(StitchedParameters).names
        function = stitched_function([(d, setting) for d in domains], operands, names)
        weights = tuple(np.ascontiguousarray(w) for w in spec.weights.values())
        tasks = sum(-(-units_of(d, setting.columns) // setting.rows) for d in domains)
        return Kernel(function, weights, max(scratch_bytes(d, setting) for d in domains), tasks * setting.unroll)


def _setting(point: Point) -> KernelSchedule:
    return KernelSchedule(int(point["rows"]), str(point["scheme"]), int(point["unroll"]), int(point["columns"]))
