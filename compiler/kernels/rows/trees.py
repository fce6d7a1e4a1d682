"""Ensembles of decision trees: the sums of the leaves that a row falls into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.control_flow import loop_over_columns
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import Expr, broadcast, vector_type
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.trees import TreesParameters

ROWS = (4, 16, 1, 64)  # of a task
SIDE_BY_SIDE = (20, 8)  # trees
FEATURE, THRESHOLD, _, RIGHT = range(4)  # of a node; left stands before right
NODE_BYTES = 16


class Trees:
    """x (B, features) float32 or float64 -> y (B, targets): the weights of leaves, added up in the order of the trees.

    A step from a node to the next waits for two loads, and nothing else in its tree can be done meanwhile. So several
    trees go down side by side, for as many steps as the deepest of them has: leaves lead to themselves. No branch
    depends on the row.

    Parameters and weights: `TreesParameters`.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        rows = [count for count in ROWS if count <= ROWS[0] or count <= spec.most(spec.outputs[0].shape[0])]
        return [{"rows": count, "trees": trees} for trees in SIDE_BY_SIDE for count in rows]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        parameters = spec.parameters_as(TreesParameters)
        rows_of_task, abreast = int(point["rows"]), int(point["trees"])
        [x], [y], weights = spec.inputs, spec.outputs, dict(spec.weights)
        depths, groups = weights.pop("depths"), range(0, parameters.trees, abreast)
        weights["steps"] = np.array([depths[at : at + abreast].max() for at in groups], np.int32)
        names = list(weights)

        def body(x: Any, *buffers: Any) -> None:
            rows = buffers[-1].shape[0]
            with T.parallel(0, T.ceildiv(rows, rows_of_task)) as task:
                first = T.bind(task * rows_of_task)
                last = T.bind(T.min(first + rows_of_task, rows))
                values = _Values.of(x, first, rows_of_task, parameters)
                totals = T.alloc_buffer((rows_of_task, parameters.targets), str(x.dtype), scope="global")
                walk = _Walk(parameters, values, dict(zip(names, buffers, strict=False)), totals, first)
                with T.serial(first, last) as row:
                    values.copy(row)
                    walk.begin(row)
                if whole := parameters.trees // abreast:
                    with T.serial(0, whole) as group, T.serial(first, last) as row:
                        walk.add(row, group, group * abreast, abreast)
                if rest := parameters.trees % abreast:
                    with T.serial(first, last) as row:
                        walk.add(row, T.int32(whole), T.int32(whole * abreast), rest)
                with T.serial(first, last) as row:
                    walk.end(row, buffers[-1])

        function = build_prim_func([x, *weights.values(), y], body)
        row_bytes = 4 * (x.shape[1] + parameters.targets) + NODE_BYTES * abreast * parameters.depth
        tasks = -(-spec.most(y.shape[0]) // rows_of_task)
        return Kernel(function, tuple(weights.values()), rows_of_task * row_bytes, tasks * abreast)


@dataclass(frozen=True, slots=True)
class _Values:
    """What trees ask for: the features of a row as float32, and where some ask for them their negatives behind these.

    Thresholds are float32. A float64 is at most one of them where the next float32 from it on is, and less where the
    last float32 up to it is.
    """

    x: Any
    buffer: Any  # `x` itself, or a copy
    first: Expr  # the row of `x` with which the copy begins
    down: bool  # float64 is rounded down

    @classmethod
    def of(cls, x: Any, first: Expr, rows: int, parameters: TreesParameters) -> _Values:
        if str(x.dtype) == "float32" and not parameters.mirrored:
            return cls(x, x, T.int32(0), down=False)
        width = int(x.shape[1]) * (2 if parameters.mirrored else 1)
        copy = T.alloc_buffer((rows, width), "float32", scope="global")
        return cls(x, copy, first, down=parameters.strict)

    def copy(self, row: Expr) -> None:
        if self.buffer is self.x:
            return
        width = int(self.x.shape[1])
        for column, n in loop_over_columns(width):
            value = T.bind(self._rounded(vector_load(self.x, row, column, count=n), n))
            vector_store(self.buffer, value, row - self.first, column, count=n)
            if int(self.buffer.shape[1]) > width:
                vector_store(self.buffer, value * broadcast(-1.0, n), row - self.first, column + width, count=n)

    def _rounded(self, value: Expr, n: int) -> Expr:
        if str(self.x.dtype) == "float32":
            return value
        value = T.bind(value)
        near = T.bind(T.cast(value, vector_type("float32", n)))
        back, bits = T.cast(near, vector_type("float64", n)), T.reinterpret(vector_type("int32", n), near)
        one, zero = broadcast(T.int32(-1 if self.down else 1), n), broadcast(T.int32(0), n)
        beyond = back > value if self.down else back < value
        moved = T.Select(bits < zero, bits - one, bits + one)
        return T.reinterpret(vector_type("float32", n), T.Select(beyond, moved, bits))

    def at(self, row: Expr, column: Expr) -> Expr:
        return self.buffer[row - self.first, column]


@dataclass(frozen=True, slots=True)
class _Walk:
    """Emits the code for one row. Sums are as exact as the row, and ONNX Runtime's, are."""

    parameters: TreesParameters
    values: _Values
    weights: Mapping[str, Any]
    totals: Any
    first: Expr  # the row with which the totals begin

    def begin(self, row: Expr) -> None:
        for column, n in loop_over_columns(self.parameters.targets):
            vector_store(self.totals, self._wide(broadcast(0.0, n), n), row - self.first, column, count=n)

    def end(self, row: Expr, output: Any) -> None:
        for column, n in loop_over_columns(self.parameters.targets):
            total = vector_load(self.totals, row - self.first, column, count=n)
            if self.parameters.average:
                total = total / self._wide(broadcast(float(self.parameters.trees), n), n)
            total = total + self._wide(vector_load(self.weights["base"], column, count=n), n)
            if output.dtype != self.totals.dtype:
                total = T.cast(total, vector_type(str(output.dtype), n))
            vector_store(output, total, row, column, count=n)

    def _wide(self, value: Expr, n: int = 1) -> Expr:
        """Floats in the type of the totals."""
        kind = str(self.totals.dtype)
        return value if kind == "float32" else T.cast(value, vector_type(kind, n))

    def add(self, row: Expr, group: Expr, tree: Expr, count: int) -> None:
        """Add the leaves of `count` trees from `tree` on, which are the group of that number."""
        places = [T.alloc_buffer((1,), "int32", scope="global") for _ in range(count)]
        for i, place in enumerate(places):
            T.buffer_store(place, self.weights["roots"][tree + i], [0])
        with T.serial(0, self.weights["steps"][group]):
            for place in places:
                T.buffer_store(place, self._next(row, T.bind(place[0])), [0])
        nodes = self.weights["nodes"]
        self._add_leaves(row, tree, [T.bind(nodes[place[0], THRESHOLD]) for place in places])

    def _next(self, row: Expr, node: Expr) -> Expr:
        nodes = self.weights["nodes"]
        value = self.values.at(row, nodes[node, FEATURE])
        threshold = T.reinterpret("float32", nodes[node, THRESHOLD])
        # A comparison of scalars that LLVM knows no vector of: it would join trees to vectors and gather one by one.
        name = f"llvm.x86.sse.comi{'lt' if self.parameters.strict else 'le'}.ss"
        small = T.call_llvm_pure_intrin("int32", name, broadcast(value, 4), broadcast(threshold, 4))
        return nodes[node, RIGHT - small]

    def _add_leaves(self, row: Expr, tree: Expr, leaves: Sequence[Expr]) -> None:
        totals, line = self.totals, row - self.first
        if self.parameters.leaf_rows:
            for column, n in loop_over_columns(self.parameters.targets):
                total = vector_load(totals, line, column, count=n)
                for leaf in leaves:
                    total = total + self._wide(vector_load(self.weights["leaves"], leaf, column, count=n), n)
                vector_store(totals, total, line, column, count=n)
        elif self.parameters.targets == 1:
            total = totals[line, 0]
            for leaf in leaves:
                total = total + self._wide(T.reinterpret("float32", leaf))
            T.buffer_store(totals, total, [line, 0])
        else:
            for i, leaf in enumerate(leaves):
                target = T.bind(self.weights["targets"][tree + i])
                weight = self._wide(T.reinterpret("float32", leaf))
                T.buffer_store(totals, totals[line, target] + weight, [line, target])
