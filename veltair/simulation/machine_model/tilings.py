"""The tilings that a compiler could choose for a layer, and the work of each on a machine.

A product of M x K by K x N is cut into tasks of `rows` x `columns` outputs. A task goes through K in stretches of
`depth`; within a segment, panels of weights (depth x nr) pass over register tiles of mr x nr outputs. Tasks are dealt
to the cores in contiguous runs, along M first or along N first. So five things may stay in a cache, in ascending size:

    nothing          inputs again for each panel of columns, weights again for each register tile
    the panel        weights once a task
    + its inputs     inputs once a task
    + its outputs    partial sums stay where they are between two stretches of K
    + the operand    that consecutive tasks share (weights along M, inputs along N): once for each cache
    + all activations  then only weights come from memory, and inputs from where they were written

These are the levels of `machine.cache_traffic`, for a core's L2 and for an L3 with several cores alike. A stream
(pooling, depthwise convolutions, norms, …) has the first and the last of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Point
from veltair.simulation.machine_model.kernel_shares import load_kernel_table, slowest_of
from veltair.simulation.machine_model.layer_shapes import LayerShape
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.roofline import Table, kept_traffic

LEVELS = 6
SUM_BYTES = 4  # partial sums are fp32
TILE = 16  # rows and columns of a matrix tile; two by two of them are in registers
DEPTH = 32  # bfloat16 values in a row of a matrix tile
STREAM_GRAIN = 2048  # outputs of the smallest worthwhile task
_DEPTHS = (128, 512)


@dataclass(frozen=True, slots=True)
class TilingCandidates:
    """All candidates of one layer; axis 0 are the candidates, the other fields are those of `roofline.ModelWork`.

    ::

        candidates = enumerate_tilings(load_model_shape("resnet50").layers[0], machine, cores=8)
        candidates.compute_ns[:, 7]  # of each candidate on eight cores
    """

    points: tuple[Point, ...]
    block_size: NDArray[np.int64]  # bytes of working set of one task
    parallelism: NDArray[np.int64]  # tasks x register tile
    compute_ns: Table  # (candidates, cores)
    l3_bytes: Table
    remote_bytes: Table
    need_bytes: Table  # (candidates, cores, levels)
    dram_bytes: Table


def enumerate_tilings(shape: LayerShape, machine: MachineModel, cores: int) -> TilingCandidates:
    """Returns every candidate of a layer on 1 … `cores` cores."""
    return _product(shape, machine, cores) if shape.m else _stream(shape, machine, cores)


def _product(shape: LayerShape, machine: MachineModel, cores: int) -> TilingCandidates:
    points = _points(shape, machine)
    rows, columns, depth = (np.array([p[key] for p in points], float) for key in ("rows", "columns", "depth"))
    along_m = np.array([p["order"] == "m" for p in points])
    mr, nr, rate = (
        np.array(values) for values in zip(*(_register_tile(shape, machine, p) for p in points), strict=True)
    )
    groups, item = shape.groups, machine.element_bytes
    gm, gn = np.ceil(shape.m / rows), np.ceil(shape.n / columns)
    tasks = groups * gm * gn
    height = rows / shape.row
    overlap = np.where(gm > 1, (height + shape.reach) / height, 1.0)

    x = shape.inputs * item * overlap / (groups * gm)  # bytes of inputs of a task
    w = (shape.weights + shape.second) * item / (groups * gn)  # of its weights
    sums = rows * columns * SUM_BYTES
    part = np.minimum(depth / shape.k, 1.0)
    split = part < 1
    results = (shape.outputs + shape.extra) * item

    def level_bytes(t: Table, holders: Table, sharing: NDArray[np.int64], outside: bool) -> tuple[Table, Table, Table]:
        """Returns needs and traffic of caches as (candidates, holders, levels), and the inputs that all of them take.

        `sharing` cores share a cache and get `t` tasks each; `outside`: below these caches is memory, not more cache.
        """

        def c(value: Table) -> Table:  # candidates down, holders across
            return value[:, None]

        w_seen = np.where(c(along_m), np.ceil(t / c(gm)), np.minimum(c(gn), t) * np.ceil(t / c(gm * gn)))
        x_seen = np.where(c(along_m), np.minimum(c(gm), t) * np.ceil(t / c(gm * gn)), np.ceil(t / c(gn)))
        w_all = holders * np.minimum(w_seen, c(groups * gn)) * c(w)
        x_all = holders * np.minimum(x_seen, c(groups * gm)) * c(x)
        each = t / sharing  # tasks of one core
        in_use = np.minimum(sharing, np.ceil(sharing * each / np.where(c(along_m), c(gm), c(gn))))
        panel = c(part * w * nr / columns + part * x * mr / rows)
        inputs = panel + c(part * x)
        outputs = inputs + c(np.where(split, sums, 0.0))
        operand = sharing * outputs + in_use * np.where(c(along_m), c(w), c(x * (1 - part)))
        whole = np.where(c(along_m), operand + x_all / holders, operand + w_all / holders) + results / holders
        cold = shape.weights / max(shape.weights + shape.second, 1)
        apart = c(tasks) * np.ones_like(t)
        again = c(2 * sums * (1 / part - 1) * tasks)
        need = [0 * t, sharing * panel, sharing * inputs, sharing * outputs, operand, whole]
        moved = [
            apart * c(columns / nr * x + rows / mr * w) + again + results,
            apart * c(columns / nr * x + w) + again + results,
            apart * c(x + w) + again + results,
            apart * c(x + w) + results,
            np.where(c(along_m), apart * c(x) + w_all, apart * c(w) + x_all) + results,
            cold * w_all if outside else w_all + x_all + results,
        ]
        return np.maximum.accumulate(np.stack(need, -1), -1), np.minimum.accumulate(np.stack(moved, -1), -1), x_all

    counts = np.arange(1, cores + 1)
    busy = np.minimum(counts[None], tasks[:, None])
    t = np.ceil(tasks[:, None] / busy)
    need, moved, _ = level_bytes(tasks[:, None] / busy, busy, np.ones_like(counts), outside=False)
    l3_bytes = kept_traffic(np.moveaxis(need, -1, 0), np.moveaxis(moved, -1, 0), machine.l2_bytes)

    domains = np.minimum(-(-counts // machine.domain_cores)[None], tasks[:, None])
    sharing = np.minimum(-(-counts // domains), busy)
    need, moved, x_all = level_bytes(tasks[:, None] / domains, domains, sharing, outside=True)
    mean_ns = shape.flops / (rate * tasks)  # of one task
    full_ns = mean_ns * rows * columns * gm * gn / (shape.m * shape.n)
    return TilingCandidates(
        tuple(points),
        (x + w + sums).astype(np.int64),
        (tasks * mr * nr).astype(np.int64),
        np.maximum(t * mean_ns[:, None], full_ns[:, None]) * _imbalance(busy, machine),
        l3_bytes,
        x_all * (1 - 1 / domains),
        need * domains[..., None],
        np.minimum(moved, l3_bytes[..., None]),
    )


def _points(shape: LayerShape, machine: MachineModel) -> list[Point]:
    """Returns even cuts of each dimension into 1, 2, 4, … parts."""
    lanes = TILE if _in_tiles(shape, machine) else machine.vector_bits // 32
    heights = sorted({ceil(shape.m // shape.row / 2**i) for i in range(8)})
    vectors = ceil(shape.n / lanes)
    widths = sorted({ceil(vectors / 2**i) for i in range(8)})
    depths = [*(d for d in _DEPTHS if d < shape.k), shape.k]
    return [
        {"rows": h * shape.row, "columns": min(w * lanes, shape.n), "depth": d, "order": order}
        for h, w, d, order in product(heights, widths, depths, "mn")
    ]


def _in_tiles(shape: LayerShape, machine: MachineModel) -> bool:
    return machine.matrix_flops > 0 and shape.m >= TILE // 4


def _register_tile(shape: LayerShape, machine: MachineModel, point: Point) -> tuple[float, float, float]:
    """Returns rows and columns of the best register tile, and the useful FLOPs per ns that a core reaches with it."""
    rows, columns = int(point["rows"]), int(point["columns"])
    if _in_tiles(shape, machine):
        useful = 1.0
        for size, step in ((rows, TILE), (shape.n, TILE), (shape.k, DEPTH)):
            useful *= size / (-(-size // step) * step)
        peak = machine.clock_ghz * machine.matrix_flops
        return min(rows, 2 * TILE), min(columns, 2 * TILE), peak * useful * machine.matrix_efficiency
    lanes = machine.vector_bits // 32
    vectors = -(-columns // lanes)
    best = (1.0, 1.0, 0.0)
    for wide in range(1, min(vectors, 4) + 1):
        most = (machine.registers - 1 - wide) // wide
        tiles = -(-rows // most)
        high = rows / tiles  # balanced
        cycles = max(high * wide / machine.fma_units, (high + wide) / machine.loads, machine.fma_latency)
        filled = vectors / (-(-vectors // wide) * wide) * shape.n / (-(-shape.n // lanes) * lanes)
        reached = high * wide / machine.fma_units / cycles * filled
        if reached > best[2]:
            best = (high, float(min(wide * lanes, columns)), reached)
    return best[0], best[1], machine.vector_flops * best[2] * _efficiency(shape, machine)


def _efficiency(shape: LayerShape, machine: MachineModel) -> float:
    """Returns the share of the register tile's bound that the kernel of this layer reaches on one core."""
    measured = load_kernel_table(machine.kernels).share(shape) if machine.kernels else None
    return machine.vector_efficiency if measured is None else measured


def _imbalance(busy: Table, machine: MachineModel) -> Table:
    """Returns how much longer the slowest of this many threads takes than their mean."""
    if not machine.kernels:
        return np.ones(())
    spread = load_kernel_table(machine.kernels).imbalance
    factors = 1 + spread * np.array([slowest_of(threads) for threads in range(int(busy.max()) + 1)])
    slower: Table = factors[busy.astype(np.int64)]
    return slower


def _stream(shape: LayerShape, machine: MachineModel, cores: int) -> TilingCandidates:
    """Returns coarse and fine tasks of a layer that reads each element once."""
    item = machine.element_bytes
    most = max(1, shape.outputs // STREAM_GRAIN)
    counts = sorted({min(most, 4**i) for i in range(1, 6)})
    tasks = np.array(counts, float)[:, None]
    on = np.arange(1, cores + 1)[None]
    busy = np.minimum(on, tasks)
    rounds = np.ceil(tasks / busy)
    activations = (shape.inputs + shape.extra + shape.outputs) * item
    weights = shape.weights * item
    rate = machine.vector_flops * _efficiency(shape, machine) / 2  # one load and one operation a cycle and unit
    ones = np.ones((len(counts), cores))
    domains = np.minimum(-(-on // machine.domain_cores), tasks)
    every = np.stack([0 * ones, *[(activations + weights) * ones] * (LEVELS - 1)], -1)
    moved = np.stack([(activations + weights) * ones, *[weights * ones] * (LEVELS - 1)], -1)
    return TilingCandidates(
        tuple({"tasks": count} for count in counts),
        np.array([(activations + weights) // count for count in counts], np.int64),
        np.array(counts, np.int64) * (machine.vector_bits // 32),
        rounds * shape.flops / (rate * tasks) * _imbalance(busy, machine),
        (activations + weights) * ones,
        shape.inputs * item * (1 - 1 / domains) * ones,
        every,
        moved,
    )
