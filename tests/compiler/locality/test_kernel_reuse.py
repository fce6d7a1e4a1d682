"""Reuse read from kernels' code: against nests counted by hand, a simulated cache, and the tensors' own bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import int8_products
import numpy as np
import pytest
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import index_in_register
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import ramp
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec, Point
from veltair.compiler.graph.parameters.products import BatchedMatmulParameters, MatmulParameters, WeightStorage
from veltair.compiler.graph.parameters.sequence import AttentionParameters, LayerNormParameters
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.locality.kernel_reuse import compulsory_bytes, kernel_reuse, loop_levels
from veltair.compiler.locality.tir_reader import UnreadableError, read_loop_nest
from veltair.machine.cache_traffic import Reuse, traffic_bytes
from veltair.machine.isa import ISAS

GROUPS, CHUNKS, ROWS, DEPTH = 4, 3, 8, 64
LINES = {"W": GROUPS * DEPTH, "X": CHUNKS * ROWS * DEPTH // 16, "Y": CHUNKS * ROWS * GROUPS}


def product(keep: Callable[[Any], Any] = T.bind) -> Reuse:
    """Y = X W by tasks of one group of 16 columns and one chunk of rows. keep: holds numbers that are used again."""

    def body(X: Any, W: Any, Y: Any) -> None:
        with T.parallel(0, GROUPS * CHUNKS) as task:
            acc = T.alloc_buffer((1,), "float32x16", scope="local")
            group, chunk = keep(task // CHUNKS), keep(task % CHUNKS)
            with T.serial(0, ROWS) as r:
                row = keep(chunk * ROWS + r)
                with T.serial(0, DEPTH) as k:
                    value = T.broadcast(X[row, k], 16)
                    T.buffer_store(acc, acc[0] + value * W[group, k, ramp(0)], [0])
                T.buffer_store(Y, acc[0], [row, ramp(group * 16)])

    x, w = np.zeros((CHUNKS * ROWS, DEPTH), np.float32), np.zeros((GROUPS, DEPTH, 16), np.float32)
    y = np.zeros((CHUNKS * ROWS, GROUPS * 16), np.float32)
    return loop_levels(read_loop_nest(build_prim_func([x, w, y], body), [x.shape, w.shape, y.shape]))


def trace() -> list[tuple[str, int]]:
    """The cache lines that the same product accesses, in order."""
    found = []
    for group in range(GROUPS):
        for row in range(CHUNKS * ROWS):
            for k in range(DEPTH):
                found += [("X", (row * DEPTH + k) // 16), ("W", group * DEPTH + k)]
            found.append(("Y", row * GROUPS + group))
    return found


def missed(lines: int, lru: bool) -> int:
    """Bytes fetched by a fully associative cache of so many lines, by age or by chance."""
    held: OrderedDict[tuple[str, int], None] = OrderedDict()
    order: list[tuple[str, int]] = []
    chance, misses = Random(0), 0
    for line in trace():
        if line in held:
            held.move_to_end(line)
            continue
        misses += 1
        if len(held) == lines:
            if lru:
                held.popitem(last=False)
            else:
                at = chance.randrange(lines)
                del held[order[at]]
                order[at] = line
        if len(order) < lines:
            order.append(line)
        held[line] = None
    return misses * 64


def test_a_nest_counted_by_hand() -> None:
    panel, row = DEPTH, DEPTH // 16 + 1
    passes = GROUPS * CHUNKS * ROWS
    expected = [
        (2, passes * (panel + row)),  # of a row: nothing of its panel is left for the next one
        # Panel and row: the panel stays for all rows of its task, and, always young, for all tasks of its group.
        (panel + row, GROUPS * (panel + CHUNKS * ROWS * row)),
        # All rows stay for all groups; meanwhile one group's panel gives way to the next one's.
        (2 * panel + CHUNKS * ROWS * row, sum(LINES.values())),
    ]
    found = product()
    assert [(level.working_set_bytes(1) // 64, level.traffic_bytes // 64) for level in found] == expected
    assert [bool(level.shared_bytes) for level in found] == [False, False, True]


def test_a_simulated_cache_moves_as_much() -> None:
    reuse = product()
    for level, next_one in zip(reuse, [*reuse[1:], None], strict=True):
        room = level.working_set_bytes(1) // 64 + 8  # some lines more: what streams past needs room too
        assert missed(room, lru=True) == pytest.approx(traffic_bytes(reuse, 1, level.working_set_bytes(1)), rel=0.1)
        if next_one and next_one.working_set_bytes(1) > 1.5 * level.working_set_bytes(1):
            between = (level.working_set_bytes(1) + next_one.working_set_bytes(1)) // 2
            by_age, by_chance = missed(between // 64, lru=True), missed(between // 64, lru=False)
            assert next_one.traffic_bytes <= by_age <= level.traffic_bytes
            assert 0.5 < by_chance / traffic_bytes(reuse, 1, between) < 2  # which keeps no row whole


def conv(
    op: str, dtype: str, channels: tuple[int, int], size: int, kernel: int, stride: int = 1, block: int = 16
) -> LayerSpec:
    pad = kernel // 2
    halo = Halo(pad, pad, pad, pad)
    out = -(-size // stride)
    x = Activation("x", dtype, (1, channels[0], size, size), block, halo)
    y = Activation("y", dtype, (1, channels[1], out, out), block)
    parameters = Conv2dParameters((kernel, kernel), (stride, stride), (1, 1), (pad,) * 4, "relu")
    shape = (channels[1], 1 if op == "depthwise_conv2d" else channels[0], kernel, kernel)
    weights = {"weight": np.zeros(shape, np.float32), "bias": np.zeros(channels[1], np.float32)}
    return LayerSpec("c", op, (x,), (y,), weights, 0, parameters=parameters)


def dense(op: str, dtype: str, rows: int, depth: int, width: int) -> LayerSpec:
    weights = {"weight": np.zeros((depth, width), np.float32), "bias": np.zeros(width, np.float32)}
    x, y = Activation("x", dtype, (rows, depth)), Activation("y", dtype, (rows, width))
    return LayerSpec("d", op, (x,), (y,), weights, 0, 4, MatmulParameters("none", WeightStorage.FP32))


def attention(dtype: str) -> LayerSpec:
    parameters = AttentionParameters(4, 64, 96, 96, 0.125, ((0, 0), (0, 256), (0, 512)), masked=False)
    x, y = Activation("x", dtype, (96, 768)), Activation("y", dtype, (96, 256))
    return LayerSpec("a", "attention", (x,), (y,), {}, 0, parameters=parameters)


def products(rows: int, depth: int, width: int) -> LayerSpec:
    """Of two computed sides, the right one turned."""
    parameters = BatchedMatmulParameters((0, 1, 2), (0, 2, 1), "", 1.0, "none")
    sides = (Activation("a", "uint16", (-3, rows, depth)), Activation("b", "float32", (-3, width, depth)))
    y = Activation("y", "float32", (-3, rows, width))
    weights = {"bias": np.zeros(width, np.float32)}
    return LayerSpec("p", "batched_matmul_bf16", sides, (y,), weights, 0, 4, parameters)


def grouped(shuffled: bool) -> LayerSpec:
    spec = conv("conv2d", "float32", (128, 128), 14, 3)
    weights = {**spec.weights, "weight": spec.weights["weight"][:, :32]}
    return replace(spec, parameters=replace(spec.parameters, groups=4, shuffled=shuffled), weights=weights)


LAYERS = {
    "1x1": conv("conv2d", "float32", (64, 128), 14, 1),
    "3x3": conv("conv2d", "float32", (48, 64), 13, 3),
    "5x5 stride 2": conv("conv2d", "float32", (16, 32), 15, 5, stride=2),
    "groups": grouped(shuffled=False),
    "groups, shuffled": grouped(shuffled=True),
    "amx products": products(48, 64, 96),
    "amx products, odd, batch": products(9, 24, 9),
    "depthwise": conv("depthwise_conv2d", "float32", (64, 64), 14, 3),
    "amx 1x1": conv("conv2d_bf16", "uint16", (64, 128), 14, 1, block=32),
    "amx 3x3": conv("conv2d_bf16", "uint16", (64, 64), 14, 3, block=32),
    "amx 3x3 stride 2": conv("conv2d_bf16", "uint16", (64, 64), 28, 3, stride=2, block=32),
    "matmul": dense("matmul", "float32", 96, 256, 192),
    "matmul, batch": dense("matmul", "float32", -1, 256, 192),
    "amx matmul": dense("matmul_bf16", "uint16", 96, 256, 192),
    "attention": attention("float32"),
    "amx attention": attention("uint16"),
    "dots 3x3": conv("conv2d_bf16", "uint16", (64, 64), 14, 3, block=32),
    "dots matmul": dense("matmul_bf16", "uint16", 96, 256, 192),
    "dots attention": attention("uint16"),
    "dots products": products(48, 64, 96),
}


def touched(spec: LayerSpec, weights: tuple[NDArray[Any], ...], batch: int) -> int:
    """Bytes of the tensors: of images with halos what the taps reach, of outputs without their halo."""
    total = sum(weight.nbytes for weight in weights)
    for tensor in (*spec.inputs, *spec.outputs):
        total += int(np.prod(tensor.at(batch))) * np.dtype(tensor.dtype).itemsize
    return total


@pytest.mark.parametrize("name", LAYERS)
def test_every_point_moves_less_with_more_cache_and_each_tensor_at_least_once(name: str) -> None:
    spec = LAYERS[name]
    features = ISAS[{"amx": "amx", "dots": "avx512_bf16"}.get(name.split()[0], "avx512")]
    batch = 4 if "batch" in name else 1
    for point in SPACES[spec.op].points(spec, features)[::5]:
        kernel = SPACES[spec.op].build(spec, point, features)
        reuse = kernel_reuse(spec, kernel, batch)
        assert len(reuse) > 1 or spec.op == "depthwise_conv2d", point
        moved = [level.traffic_bytes for level in reuse]
        assert moved == sorted(moved, reverse=True), point
        needs = [level.working_set_bytes(1) for level in reuse]
        assert needs == sorted(needs), point
        assert moved[-1] == pytest.approx(touched(spec, kernel.weights, batch), rel=0.05), point


@pytest.mark.parametrize("columns", [40, 64, 1000])
def test_products_of_integers_are_read_whatever_their_columns_fill(columns: int) -> None:
    spec = int8_products.product((-7, 128), (-7, columns), int8_products.Parameters("none"))
    for point in SPACES[spec.op].points(spec, ISAS["amx"])[::3]:
        kernel = SPACES[spec.op].build(spec, point, ISAS["amx"])
        reuse = kernel_reuse(spec, kernel, 4)
        assert len(reuse) > 1
        assert reuse[-1].traffic_bytes >= touched(spec, kernel.weights[:1], 4)


def test_shares_of_rows_may_be_empty() -> None:
    spec = dense("matmul_bf16", "uint16", -25, 512, 2048)
    for point in SPACES[spec.op].points(spec, ISAS["amx"])[::4]:
        kernel = SPACES[spec.op].build(spec, point, ISAS["amx"])
        assert kernel_reuse(spec, kernel, 1)[-1].traffic_bytes >= kernel.weights[0].nbytes, point


def test_a_stride_leaves_lines_out() -> None:
    spec = conv("conv2d", "float32", (64, 64), 28, 1, stride=2)
    kernel = SPACES["conv2d"].build(spec, SPACES["conv2d"].points(spec, ISAS["avx512"])[0], ISAS["avx512"])
    x, y = 64 * 28 * 28 * 4 // 4, 64 * 14 * 14 * 4
    expected = x + y + sum(w.nbytes for w in kernel.weights)
    assert kernel_reuse(spec, kernel)[-1].traffic_bytes == pytest.approx(expected, rel=0.02)


def panels(point: Point) -> Reuse:
    spec = conv("conv2d", "float32", (256, 256), 14, 1)
    return kernel_reuse(spec, SPACES["conv2d"].build(spec, point, ISAS["avx512"]))


def test_larger_blocks_move_less_and_need_more() -> None:
    small, large = (panels({"algorithm": "direct", "channels": 2, "pixels": 8, "rows": rows}) for rows in (1, 14))
    assert traffic_bytes(large, 1, 300 << 10) < 0.5 * traffic_bytes(small, 1, 64 << 10)
    assert max(level.task_bytes for level in large) > max(level.task_bytes for level in small)


def test_look_ups_count_the_rows_that_are_picked() -> None:
    ids = (Activation("ids", "int64", (-1, 9)),)
    weights = {"table0": np.zeros((1000, 32), np.float32), "positions": np.zeros((9, 32), np.float32)}
    weights |= {"scale": np.ones(32, np.float32), "shift": np.zeros(32, np.float32)}
    y = Activation("y", "float32", (-9, 32))
    spec = LayerSpec("e", "embedding", ids, (y,), weights, 0, 2, LayerNormParameters(1e-5))
    kernel = SPACES["embedding"].build(spec, {"rows": 8}, ISAS["avx512"])
    expected = 2 * 9 * (8 + 128 + 128) + 9 * 128 + 256
    (only,) = kernel_reuse(spec, kernel, 2)
    assert only.traffic_bytes == compulsory_bytes(spec, 2) == expected


def test_numbers_and_vectors_in_registers_are_bindings() -> None:
    assert product(index_in_register) == product()
    plain, space = conv("conv2d", "float32", (64, 64), 14, 1), SPACES["conv2d"]
    gated = replace(plain, parameters=replace(plain.parameters_as(Conv2dParameters), activation="gated-sigmoid"))
    point = space.points(plain, ISAS["avx512"])[0]
    assert len({kernel_reuse(spec, space.build(spec, point, ISAS["avx512"])) for spec in (plain, gated)}) == 1


def test_a_number_that_changes_is_no_index() -> None:
    def body(X: Any, Y: Any) -> None:
        with T.parallel(0, 4) as task:
            at = index_in_register(task * 8)
            T.buffer_store(Y, X[at], [task])
            T.buffer_store(at.source, at + 1, [0])

    x, y = np.zeros(32, np.float32), np.zeros(4, np.float32)
    with pytest.raises(UnreadableError, match="a number that changes"):
        read_loop_nest(build_prim_func([x, y], body), [x.shape, y.shape])
