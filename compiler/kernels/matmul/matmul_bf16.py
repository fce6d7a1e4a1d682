"""Matrix products with constant weights on bfloat16: in tiles where the CPU has AMX, else in pairs."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, STEP
from veltair.compiler.kernels.matmul.matmul import Matmul
from veltair.compiler.kernels.matmul.matmul_amx import AmxMatmul
from veltair.compiler.kernels.matmul.matmul_operands import max_rows
from veltair.compiler.kernels.matmul.matrix_unit import MatrixUnit


class MatmulBf16:
    """inputs: x (M, K) bfloat16[, gate (M, N)][, residual (M, N)]; weights: weight (K, N), bias (N); output (M, N).

    Gate, residual and output are fp32 or bfloat16. M may depend on the batch. Sums, bias, activation and what gate and
    residual do to them are fp32. Parameters: `MatmulParameters`.

    >>> from veltair.compiler.graph.layer_spec import Activation
    >>> x, y = Activation("x", "uint16", (-128, 768)), Activation("y", "uint16", (-128, 768))
    >>> spec = LayerSpec("dense", "matmul_bf16", (x,), (y,), {}, flops=0)
    >>> MatmulBf16().points(spec, frozenset({"avx2", "avx512", "avx512_bf16", "amx_bf16"}))[0]
    {'unit': 'amx', 'panels': 6, 'chunks': 1, 'steps': 8}
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        if MatrixUnit.of_cpu(features) is not MatrixUnit.AMX:
            return Matmul().points(spec, features)
        panels = -(-spec.outputs[0].shape[1] // BLOCK)
        blocks = -(-max_rows(spec) // BLOCK)
        groups = [c for c in (6, 4, 3, 8, 2, 12, 1) if panels % c == 0 and c <= max(panels // 2, 1)]
        splits = sorted({min(blocks, c) for c in (1, 2, 4)})
        steps = max(spec.inputs[0].shape[1] // STEP, 1)
        stretches = dict.fromkeys(min(steps, s) for s in (8, 6, 12, 24))
        return [
            {"unit": MatrixUnit.AMX.value, "panels": p, "chunks": c, "steps": s}
            for c in splits
            for s in stretches
            for p in groups
        ]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        return AmxMatmul(spec, point).build() if "unit" in point else Matmul().build(spec, point, features)
