"""What all products with constant weights share: their rows, packed weights, and the epilogue of their sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.bf16 import array_to_bf16, float32_pair_to_bf16
from veltair.compiler.codegen.control_flow import when
from veltair.compiler.codegen.memory import masked_store, vector_load
from veltair.compiler.codegen.multiply_add import VALUES_PER_STEP
from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.codegen.weight_packing import pack_bf16_pairs, pad_axis
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage


def pack_panels(spec: LayerSpec, panel: int) -> NDArray[Any]:
    """The weights (K, N) as (N / panel, K, panel) in the type that the layer stores them as, with zeros behind the last
    column. For inputs in bfloat16: (N / panel, K / 2, panel), in pairs along K.
    """
    weight = pad_axis(spec.weights["weight"], 1, panel)
    packed = np.ascontiguousarray(weight.reshape(len(weight), -1, panel).transpose(1, 0, 2))
    if VALUES_PER_STEP[spec.inputs[0].dtype] > 1:
        return pack_bf16_pairs(packed, 1)
    narrow = spec.parameters_as(MatmulParameters).storage is WeightStorage.BF16
    return array_to_bf16(packed) if narrow else packed


def max_rows(spec: LayerSpec) -> int:
    """The rows (M) at the greatest batch."""
    return spec.most(spec.inputs[0].shape[0])


@dataclass(frozen=True, slots=True)
class MatmulEpilogue:
    """What becomes of the sums of a product: activation(sums [* gate] [+ residual]), stored to the output.

    ::

        epilogue = MatmulEpilogue.of_layer(spec, rest)  # rest: the buffers behind x
        epilogue.store(sums, row, column)  # 16 outputs
    """

    output: Any  # buffer (M, N), like those of gate and residual
    gate: Any | None
    residual: Any | None
    activation: str
    width: int  # N

    @classmethod
    def of_layer(cls, spec: LayerSpec, buffers: Sequence[Any]) -> MatmulEpilogue:
        """The epilogue of a layer. `buffers` are those behind x: [gate,] [residual,] weights, output."""
        operands = list(buffers[: len(spec.inputs) - 1])
        parameters = spec.parameters_as(MatmulParameters)
        gate = operands.pop(0) if parameters.gated else None
        residual = operands[0] if operands else None
        return cls(buffers[-1], gate, residual, parameters.activation, spec.outputs[0].shape[1])

    def inside(self, column: Expr, panel: int) -> list[Expr]:
        """What has to hold of a vector's first column: nothing where all panels, of `panel` columns each, are full."""
        return [column < self.width] if self.width % panel else []

    def store(self, value: Expr, row: Expr, column: Expr) -> None:
        """Finish and store 16 outputs. The first of them must lie below column N; those behind N are not written."""
        if self.gate is not None:
            value = value * vector_load(self.gate, row, column)
        if self.residual is not None:
            value = value + vector_load(self.residual, row, column)
        value = T.bind(apply_activation(value, self.activation, approximate=self.output.dtype == "uint16"))
        masked_store(self.output, value, row, column, width=self.width)

    def store_pair(self, low: Expr, high: Expr, row: Expr, column: Expr) -> None:
        """Finish and store 32 outputs, any of which may lie behind column N. Needs AVX-512-bf16."""
        plain = self.gate is None and self.residual is None
        if self.output.dtype == "uint16" and plain and self.width % (2 * LANES) == 0:
            values = [apply_activation(value, self.activation, approximate=True) for value in (low, high)]
            T.buffer_store(self.output, float32_pair_to_bf16(*values), [row, ramp(column, 2 * LANES)])
            return
        for value, at in ((low, column), (high, T.bind(column + LANES))):
            with when(at < self.width):
                self.store(value, row, at)
