"""Any function of one tensor of 8 bits: a table of 256 steps."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.byte_table import BYTES, load_byte_table, look_up_bytes
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.row_lanes import flatten
from veltair.compiler.codegen.vectors import ramp
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point

CHUNKS = (1 << 14, 1 << 12, 1 << 16)  # elements of a task


class StepTable:
    """input and output: tensors of 8 bits in one layout. weights: table (256), by the input's bits.

    >>> StepTable.__name__
    'StepTable'
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        total = spec.most(prod(spec.inputs[0].physical))
        return [{"chunk": chunk} for chunk in CHUNKS if chunk < total] or [{"chunk": CHUNKS[0]}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        table, chunk = np.ascontiguousarray(spec.weights["table"]), int(point["chunk"])

        def body(X: Any, table: Any, Y: Any) -> None:
            total, source, target = prod(X.shape), flatten(X), flatten(Y)
            with T.parallel(0, T.ceildiv(total, chunk)) as task:
                count, start = T.bind(T.min(chunk, total - task * chunk)), 0
                if "avx512" in features:
                    start = T.bind(count // BYTES * BYTES)
                    values = load_byte_table(table)
                    with T.serial(0, count // BYTES) as step:
                        at = T.bind(task * chunk + step * BYTES)
                        found = look_up_bytes(values, source[ramp(at, BYTES)], y.dtype)
                        T.buffer_store(target, found, [ramp(at, BYTES)])
                with T.serial(0, count - start) as rest:
                    at = T.bind(task * chunk + start + rest)
                    place = T.cast(T.reinterpret("uint8", source[at]), "int32")
                    T.buffer_store(target, table[place], [at])

        tasks = -(-spec.most(prod(x.physical)) // chunk)
        return Kernel(build_prim_func([x, table, y], body), (table,), 2 * chunk, tasks)
