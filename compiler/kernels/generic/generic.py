"""The design space of layers of generated code: one point, a plain schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm.s_tir import SBlockRealize, Schedule
from tvm.s_tir.schedule import ScheduleError

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.generic import GenericParameters
from veltair.compiler.kernels.generic.relax_layers import element_count


class Generic:
    """A plain schedule: injective producers inlined, the spatial loops of each nest fused and parallel.

    It is `design_spaces.SPACES["generic"]`.

    >>> Generic().points(LayerSpec("softmax", "generic", (), (), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        function = schedule(spec.parameters_as(GenericParameters).tir)
        traffic = sum(element_count(t.shape) * np.dtype(t.dtype).itemsize for t in (*spec.inputs, *spec.outputs))
        return Kernel(function, tuple(spec.weights.values()), traffic, 1)


def schedule(function: Any) -> Any:
    """The function with parallel outer loops; a block that cannot be scheduled stays serial and correct.

    It shares no node with the one that is given: TVM schedules in place, and other threads may compile meanwhile what
    was scheduled from the same function before. That ended one process in several.
    """
    own = tvm.ir.load_json(tvm.ir.save_json(function.without_attr("global_symbol")))
    plan = Schedule(tvm.IRModule({"main": own}))
    if not _has_root(own):
        return plan.mod["main"]
    for block in plan.get_child_blocks(plan.get_sblock("root")):
        try:
            plan.compute_inline(block)
        except ScheduleError:
            continue  # an output, or a reduction
    for block in plan.get_child_blocks(plan.get_sblock("root")):
        kinds = [str(v.iter_type) for v in plan.get(block).iter_vars]
        loops = plan.get_loops(block)
        spatial = 0
        while spatial < min(len(loops), len(kinds)) and kinds[spatial] == "0":
            spatial += 1
        keep = 1 if spatial == len(loops) and spatial > 1 else 0  # the innermost stays for LLVM to vectorise
        try:
            if spatial - keep > 0:
                plan.parallel(plan.fuse(*loops[: spatial - keep]))
        except ScheduleError:
            continue
    return plan.mod["main"]


def _has_root(function: Any) -> bool:
    """Whether the loops of a function stand in a root block; those of an operator that TVM writes out may not."""
    body = function.body
    return isinstance(body, SBlockRealize) and body.block.name_hint == "root"
