"""Helpers of the tests: a design space whose kernels copy rows, searched for real, and records made up by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.tuning.search_plan import TVM
from veltair.compiler.tuning.setting import Setting
from veltair.machine.isa import cpu_features, tvm_target
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord


def layer(name: str = "l", rows: int = 64) -> LayerSpec:
    x = Activation(f"{name}.x", "float32", (rows, 8))
    return LayerSpec(name, "copy", (x,), (Activation(f"{name}.y", "float32", (rows, 8)),), {}, 0)


@dataclass
class Copy:
    """Points with a call in them do that before they copy."""

    space: Sequence[Point]
    built: list[Point] = field(default_factory=list)

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return list(self.space)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        self.built.append(point)

        def body(x: Any, y: Any) -> None:
            if "call" in point:
                T.evaluate(T.call_extern("int32", str(point["call"])))
            with T.parallel(0, x.shape[0]) as row, T.serial(0, 8) as i:
                T.buffer_store(y, x[row, i], [row, i])

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        return Kernel(function, (), block_size=32 * int(point["tile"]), parallelism=64 // int(point["tile"]))


TILES: list[Point] = [{"tile": t} for t in (1, 2, 4)]


def setting(space: Copy) -> Setting:
    return Setting(tvm_target(), cpu_features(), "a cpu", "fp32", 1, {}, {"copy": space})


def store(folder: Path) -> RecordStore:
    return RecordStore(cpu_features(), user=folder / "user", shipped=folder / "shipped")


QUIET = Progress(disable=True)


# Seven tiles; by the records that `written` makes, the last is the fastest.
WIDE: list[Point] = [{"tile": t} for t in (1, 2, 4, 8, 16, 32, 64)]


def written(
    store: RecordStore, spec: LayerSpec, points: Sequence[Point], cpu: str = "a cpu", tvm: str = TVM
) -> RecordStore:
    for i, point in enumerate(points):
        store.append(
            TuningRecord(spec.workload, 1, point, (1_000_000 - i,), 64, 8, tuple(sorted(cpu_features())), cpu, tvm)
        )
    return store


def shipping(folder: Path) -> RecordStore:
    return RecordStore(cpu_features(), user=folder / "shipped", shipped=folder / "none")
