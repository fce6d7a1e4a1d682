"""DynamicQuantizeLinear: the range of a tensor, and its values as steps of that range."""

from __future__ import annotations

from math import prod
from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen import vector_math as vm
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import vector_load
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten
from veltair.compiler.codegen.vectors import LANES, Expr, broadcast
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.int8.epilogue import round_within

CHUNK = 8192  # elements of a task
UNROLLED = 4  # vectors whose range is found together: a minimum waits for the one before
LEVELS = 255  # steps of the range


class DynamicQuantise:
    """input: x float32, row-major. outputs: y uint8, of its shape; scale (1) float32; zero (1) uint8.

    The range takes zero in. A tensor of zeros alone has scale 1, as in ONNX Runtime. Two loops over tasks: the first
    finds the range of each task's elements, the second joins them.

    >>> DynamicQuantise().points(LayerSpec("q", "dynamic_quantise", (), (), {}, flops=0), frozenset({"avx2"}))
    [{}]
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        most = -(-spec.most(prod(spec.inputs[0].shape)) // CHUNK)

        def body(X: Any, Y: Any, scale: Any, zero: Any) -> None:
            total, source, target = prod(X.shape), flatten(X), flatten(Y)
            tasks = T.ceildiv(total, CHUNK)
            ranges = T.alloc_buffer((2, most), "float32", scope="global")
            T.buffer_store(ranges, 0.0, [1, most - 1])  # see memory.allocate_scratch
            with T.parallel(0, tasks) as task:
                _find_range(source, ranges, task, T.bind(T.min(CHUNK, total - task * CHUNK)))
            with T.parallel(0, tasks) as task:
                low, high = _join_ranges(ranges, tasks)
                step = T.bind(T.Select(high > low, (high - low) / T.float32(LEVELS), T.float32(1)))
                lowest = round_within(T.Div(-low, step), T.float32(1), T.float32(0), T.float32(LEVELS), 1)
                first = T.bind(lowest)
                with when(task == 0):
                    T.buffer_store(scale, step, [0])
                    T.buffer_store(zero, T.cast(T.cast(first, "int32"), "uint8"), [0])
                inverse = T.bind(T.float32(1) / step)
                _store_steps(source, target, task, T.bind(T.min(CHUNK, total - task * CHUNK)), inverse, first)

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        return Kernel(function, (), CHUNK * 5, most)


def _find_range(source: Any, ranges: Any, task: Expr, count: Expr) -> None:
    """Least and greatest of a task's elements and zero."""
    found = T.alloc_buffer((2,), f"float32x{LANES}", scope="local")
    begin = T.bind(task * CHUNK)
    for side in range(2):
        T.buffer_store(found, broadcast(0.0), [side])

    def take(*values: Expr) -> None:
        for side, choose in enumerate((T.min, T.max)):
            joined = values[0]
            for value in values[1:]:
                joined = choose(joined, value)
            T.buffer_store(found, choose(found[side], joined), [side])

    stretch = UNROLLED * LANES
    with T.serial(0, count // stretch) as at:
        take(*(T.bind(vector_load(source, begin + at * stretch + i * LANES)) for i in range(UNROLLED)))
    with T.serial(0, count % stretch) as at:
        take(T.bind(broadcast(source[begin + count // stretch * stretch + at])))
    for side, fold in enumerate((vm.min_lanes, vm.max_lanes)):
        T.buffer_store(ranges, fold(T.bind(found[side])), [side, task])


def _join_ranges(ranges: Any, tasks: Expr) -> tuple[Expr, Expr]:
    joined = T.alloc_buffer((2,), "float32", scope="local")
    for side in range(2):
        T.buffer_store(joined, T.float32(0), [side])
    with T.serial(0, tasks) as n:
        for side, choose in enumerate((T.min, T.max)):
            T.buffer_store(joined, choose(joined[side], ranges[side, n]), [side])
    return T.bind(joined[0]), T.bind(joined[1])


def _store_steps(source: Any, target: Any, task: Expr, count: Expr, inverse: Expr, zero: Expr) -> None:
    begin = T.bind(task * CHUNK)

    def steps(value: Expr, lanes: int) -> Expr:
        factor, first, wide = broadcast(inverse, lanes), broadcast(zero, lanes), f"x{lanes}" if lanes > 1 else ""
        low, high = broadcast(T.float32(-LEVELS), lanes), broadcast(T.float32(LEVELS), lanes)
        whole = round_within(value, factor, low, high, lanes) + first
        within = T.min(T.max(whole, broadcast(T.float32(0), lanes)), high)
        return T.cast(T.cast(within, f"int32{wide}"), f"uint8{wide}")

    with T.serial(0, count // LANES) as at:
        place = T.bind(begin + at * LANES)
        T.buffer_store(target, steps(T.bind(vector_load(source, place)), LANES), [T.ramp(place, 1, LANES)])
    with T.serial(0, count % LANES) as at:
        place = T.bind(begin + count // LANES * LANES + at)
        T.buffer_store(target, steps(T.bind(source[place]), 1), [place])
