"""Gated recurrent units over short sequences, all steps of a tile of rows in one task.

Lanes are rows of the batch: a unit's state is one vector, and a product with a weight is one multiply-add of 16 rows
however few units there are. Sequences are turned into that form 16 by 16 in registers on their way in, and back on
their way out, so that nothing passes through memory between steps but the tile's own states, in L1.

The products with the inputs depend on no state. They are made for all steps before the first one ("hoisted", AtRec
III-B1), or within each step, where they fill the time that the chain of states spends waiting. Nothing is
concatenated or split in either.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.codegen import vector_math as vm
from veltair.compiler.kernels.codegen.memory import vector_load, vector_store
from veltair.compiler.kernels.codegen.prim_func import build_prim_func
from veltair.compiler.kernels.codegen.row_lanes import flatten_to_rows, load_transposed, store_transposed
from veltair.compiler.kernels.codegen.vectors import LANES, Expr, broadcast


class Recurrent:
    """inputs: x (rows, steps, I)[, scores (rows, steps)][, initial (rows, H)][, lengths (rows) int32]; weights: input
    (I, 3 H) and recurrent (H, 3 H) for reset, update and candidate, bias (3 H), candidate_bias (H); outputs: states
    (rows, steps, H) and last (rows, H), or one of them.

        r, u = sigmoid(x W + h R + b);  u = (1 - score) u;  h = u h + (1 - u) c
        c = tanh(x W + (r h) R + b), or tanh(x W + r (h R + candidate_bias) + b) where `reset` is "after"

    Attributes: `reads` and `writes` name the tensors in order; `x_order` (of scores as well) and `y_order` are "rows"
    or "steps", whichever comes first in memory; `reset` is "before" or "after" the product. Behind a row's length its
    state stays as it is and its `states` are zeros.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        hidden = spec.weights["recurrent"].shape[0]
        registers = 24 if "avx512" in features else 12
        gates = 4 if spec.attributes["reset"] == "after" else 2
        found: list[Point] = []
        for tiles in (1, 2) if "avx512" in features else (1,):
            most = max(registers // gates // tiles, 1)
            blocks = -(-hidden // most)
            for hoisted in (0, 1):
                found.append({"tiles": tiles, "units": -(-hidden // blocks), "hoisted": hoisted})
        return found

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        weights = Packed(spec, int(point["units"]))

        def body(*buffers: Any) -> None:
            names = (*spec.attributes["reads"], *weights.arrays, *spec.attributes["writes"])
            _Task(spec, point, dict(zip(names, buffers, strict=True)), weights.blocks).emit()

        function = build_prim_func([*spec.inputs, *weights.arrays.values(), *spec.outputs], body)
        rows = int(point["tiles"]) * LANES
        (count, steps, inputs), hidden = sequence(spec), weights.hidden
        block_size = rows * steps * 4 * (inputs + hidden) + sum(w.nbytes for w in weights.arrays.values())
        return Kernel(function, tuple(weights.arrays.values()), block_size, -(-spec.most(count) // rows) * LANES)


def sequence(spec: LayerSpec) -> tuple[int, int, int]:
    """Rows, steps and width of x."""
    first, second, width = spec.inputs[0].shape
    return (first, second, width) if spec.attributes["x_order"] == "rows" else (second, first, width)


class Packed:
    """Weights by block of units, as the loops read them; a last block that would reach past the units begins earlier.

    gates (blocks, I + H, 2 units) and candidate (blocks, I + H, units); where the reset comes after the product,
    gates (blocks, I + H, 3 units) alone. Biases likewise (blocks, …), the candidate's second one behind.
    """

    def __init__(self, spec: LayerSpec, units: int) -> None:
        self.hidden = hidden = spec.weights["recurrent"].shape[0]
        self.blocks = [min(first, hidden - units) for first in range(0, hidden, units)]
        both = np.concatenate([spec.weights["input"], spec.weights["recurrent"]]).astype(np.float32)
        bias = spec.weights["bias"].astype(np.float32)

        def taken(array: NDArray[Any], gates: Sequence[int]) -> NDArray[np.float32]:
            columns = [[g * hidden + first + u for g in gates for u in range(units)] for first in self.blocks]
            return np.ascontiguousarray(np.moveaxis(array[..., columns], -2, 0), np.float32)

        if spec.attributes["reset"] == "after":
            behind = np.concatenate([bias, spec.weights["candidate_bias"].astype(np.float32)])
            self.arrays = {"gates": taken(both, (0, 1, 2)), "gates_bias": taken(behind, (0, 1, 2, 3))}
        else:
            self.arrays = {
                "gates": taken(both, (0, 1)), "gates_bias": taken(bias, (0, 1)),
                "candidate": taken(both, (2,)), "candidate_bias": taken(bias, (2,)),
            }  # fmt: skip


class _Task:
    """Code of a task: `tiles` times 16 rows through all steps."""

    def __init__(self, spec: LayerSpec, point: Point, buffers: dict[str, Any], blocks: Sequence[int]) -> None:
        self.spec, self.buffers, self.blocks = spec, buffers, blocks
        self.tiles, self.units, self.hoisted = (int(point[k]) for k in ("tiles", "units", "hoisted"))
        _, self.steps, self.inputs = sequence(spec)
        self.hidden = spec.weights["recurrent"].shape[0]
        self.after = spec.attributes["reset"] == "after"
        self.rows = buffers["x"].shape[0 if spec.attributes["x_order"] == "rows" else 1]
        self.slots = self.steps + 1 if "states" in buffers else 2  # of states, the first one's included

    def emit(self) -> None:
        with T.parallel(0, T.ceildiv(self.rows, self.tiles * LANES)) as task:
            self.first = T.bind(task * (self.tiles * LANES))
            self.x = self._lines(self.steps * self.inputs)
            self.h = self._lines(self.slots * self.hidden)
            self.update, self.mixed = self._lines(self.hidden), self._lines(self.hidden)
            self.accumulators = T.alloc_buffer((self.tiles * self.units * 4,), "float32x16", scope="local")
            kinds = {"gates": 3 if self.after else 2} | ({} if self.after else {"candidate": 1})
            self.ready = {
                kind: self._lines(self.steps * len(self.blocks) * self.units * gates)
                for kind, gates in kinds.items()
                if self.hoisted
            }
            self.scores = self._lines(self.steps) if "scores" in self.buffers else None
            self.lengths = self._lines(1) if "lengths" in self.buffers else None
            for tile in range(self.tiles):
                self._read(tile)
            if self.hoisted:
                with T.serial(0, self.steps) as step:
                    for kind in kinds:
                        with self._by_blocks() as (block, _):
                            self._inputs_only(kind, step, block)
            with T.serial(0, self.steps) as step:
                with self._by_blocks() as (block, unit):
                    self._gates(step, block, unit)
                if not self.after:
                    with self._by_blocks() as (block, unit):
                        self._candidate(step, block, unit)
            for tile in range(self.tiles):
                self._write(tile)

    def _lines(self, count: int) -> Any:
        """One vector of 16 rows a line, for each tile."""
        return T.alloc_buffer((self.tiles, count, LANES), "float32", scope="global")

    @contextmanager
    def _by_blocks(self) -> Iterator[tuple[Expr, Expr]]:
        """For each block of units: its number and its first unit."""
        if len(self.blocks) == 1:
            yield T.int32(0), T.int32(0)
            return
        with T.serial(0, len(self.blocks)) as block:
            yield block, T.bind(T.min(block * self.units, self.hidden - self.units))

    # One step.

    def _gates(self, step: Expr, block: Expr, unit: Expr) -> None:
        """Reset and update of a block of units; its new state as well where the reset comes after the product."""
        units, before = self.units, T.bind(self._slot(step))
        self._start("gates", 4 if self.after else 2, step, block)
        self._multiply("gates", self.h, before, self.hidden, block, self.inputs, (0, 1, 3) if self.after else (0, 1))
        for u in range(units):
            for tile in range(self.tiles):
                sums = [self.accumulators[(gate * units + u) * self.tiles + tile] for gate in range(4)]
                reset, update = (vm.sigmoid(gate) for gate in sums[:2])
                old = T.bind(vector_load(self.h, tile, before + unit + u, 0))
                if "scores" in self.buffers:
                    update = T.bind(update - update * vector_load(self.scores, tile, step, 0))
                if self.after:
                    self._advance(tile, step, unit + u, old, update, vm.tanh(sums[2] + reset * sums[3]))
                else:
                    vector_store(self.mixed, reset * old, tile, unit + u, 0)
                    vector_store(self.update, update, tile, unit + u, 0)

    def _candidate(self, step: Expr, block: Expr, unit: Expr) -> None:
        """The new state of a block of units from the gates of all."""
        before = T.bind(self._slot(step))
        self._start("candidate", 1, step, block)
        self._multiply("candidate", self.mixed, T.int32(0), self.hidden, block, self.inputs, (0,))
        for u in range(self.units):
            for tile in range(self.tiles):
                candidate = vm.tanh(self.accumulators[u * self.tiles + tile])
                old = T.bind(vector_load(self.h, tile, before + unit + u, 0))
                self._advance(tile, step, unit + u, old, vector_load(self.update, tile, unit + u, 0), candidate)

    def _advance(self, tile: int, step: Expr, unit: Expr, old: Expr, update: Expr, candidate: Expr) -> None:
        candidate = T.bind(candidate)
        new = candidate + update * (old - candidate)
        if "lengths" in self.buffers:
            runs = T.broadcast(T.cast(step, "float32"), LANES) < vector_load(self.lengths, tile, 0, 0)
            new = T.Select(runs, T.bind(new), old)
        vector_store(self.h, new, tile, self._slot(step + 1) + unit, 0)

    def _slot(self, step: Expr) -> Expr:
        """Where the states before a step lie."""
        return (step if "states" in self.buffers else step % 2) * self.hidden

    # Products.

    def _start(self, kind: str, gates: int, step: Expr, block: Expr) -> None:
        """Accumulators with bias and input products."""
        if not self.hoisted:
            self._inputs(kind, gates, step, block)
            return
        made = min(gates, 3) * self.units
        first = T.bind((step * len(self.blocks) + block) * made)
        for at in range(gates * self.units):
            for tile in range(self.tiles):
                value = vector_load(self.ready[kind], tile, first + at, 0) if at < made else self._bias(kind, block, at)
                T.buffer_store(self.accumulators, value, [at * self.tiles + tile])

    def _inputs_only(self, kind: str, step: Expr, block: Expr) -> None:
        gates = 1 if kind == "candidate" else 3 if self.after else 2
        self._inputs(kind, gates, step, block)
        first = T.bind((step * len(self.blocks) + block) * (gates * self.units))
        for at in range(gates * self.units):
            for tile in range(self.tiles):
                vector_store(self.ready[kind], self.accumulators[at * self.tiles + tile], tile, first + at, 0)

    def _inputs(self, kind: str, gates: int, step: Expr, block: Expr) -> None:
        for at in range(gates * self.units):
            value = T.bind(self._bias(kind, block, at))
            for tile in range(self.tiles):
                T.buffer_store(self.accumulators, value, [at * self.tiles + tile])
        self._multiply(kind, self.x, step * self.inputs, self.inputs, block, 0, range(min(gates, 3)))

    def _bias(self, kind: str, block: Expr, at: int) -> Expr:
        return T.broadcast(self.buffers[f"{kind}_bias"][block, at], LANES)

    def _multiply(
        self, kind: str, lines: Any, start: Expr, depth: int, block: Expr, row: int, gates: Sequence[int]
    ) -> None:
        """Add `depth` lines times rows of weights from `row` on to the accumulators of the gates."""
        weight, units = self.buffers[kind], self.units
        with T.serial(0, depth) as k:
            values = [T.bind(vector_load(lines, tile, start + k, 0)) for tile in range(self.tiles)]
            for column, gate in enumerate(gates):
                for u in range(units):
                    factor = T.broadcast(weight[block, row + k, column * units + u], LANES)
                    factor = T.bind(factor) if self.tiles > 1 else factor
                    for tile, value in enumerate(values):
                        at = (gate * units + u) * self.tiles + tile
                        T.buffer_store(self.accumulators, self.accumulators[at] + value * factor, [at])

    # Ways in and out.

    def _read(self, tile: int) -> None:
        for name, lines, width in (("x", self.x, self.inputs), ("scores", self.scores, 1)):
            if name in self.buffers and self.spec.attributes["x_order"] == "rows":
                self._turn_in(tile, self._flat(name, self.steps * width), 0, lines, 0, self.steps * width)
            elif name in self.buffers:
                source = self._flat(name, width)
                with T.serial(0, self.steps) as step:
                    self._turn_in(tile, source, step * self.rows, lines, step * width, width)
        if "initial" in self.buffers:
            self._turn_in(tile, self._flat("initial", self.hidden), 0, self.h, 0, self.hidden)
        else:
            with T.serial(0, self.hidden) as unit:
                vector_store(self.h, broadcast(0.0), tile, unit, 0)
        if "lengths" in self.buffers:
            with T.serial(0, LANES) as lane:
                length = self.buffers["lengths"][T.min(self._row(tile) + lane, self.rows - 1)]
                T.buffer_store(self.lengths, T.cast(length, "float32"), [tile, 0, lane])

    def _write(self, tile: int) -> None:
        hidden, steps = self.hidden, self.steps
        if "last" in self.buffers:
            self._turn_out(tile, self._flat("last", hidden), 0, self._slot(T.int32(steps)), hidden)
        if "states" not in self.buffers:
            return
        if "lengths" in self.buffers:
            with T.serial(0, steps) as step, T.serial(0, hidden) as unit:
                runs = T.broadcast(T.cast(step, "float32"), LANES) < vector_load(self.lengths, tile, 0, 0)
                at = (step + 1) * hidden + unit
                vector_store(self.h, T.Select(runs, vector_load(self.h, tile, at, 0), broadcast(0.0)), tile, at, 0)
        if self.spec.attributes["y_order"] == "rows":
            self._turn_out(tile, self._flat("states", steps * hidden), 0, hidden, steps * hidden)
        else:
            target = self._flat("states", hidden)
            with T.serial(0, steps) as step:
                self._turn_out(tile, target, step * self.rows, (step + 1) * hidden, hidden)

    def _flat(self, name: str, width: int) -> Any:
        return flatten_to_rows(self.buffers[name], width)

    def _turn_in(self, tile: int, source: Any, first: Expr, lines: Any, line: Expr, width: int) -> None:
        load_transposed(source, first, self._row(tile), self.rows, lines, (tile, line), width)

    def _turn_out(self, tile: int, target: Any, first: Expr, line: Expr, width: int) -> None:
        store_transposed(self.h, (tile, line), target, first, self._row(tile), self.rows, width)

    def _row(self, tile: int) -> Expr:
        """The first row of a tile."""
        return self.first + tile * LANES
