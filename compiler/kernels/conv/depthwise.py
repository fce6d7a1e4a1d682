"""Depthwise convolution: each channel by itself, fp32 or bfloat16 in memory, fp32 in registers.

A register tile holds `pixels` neighbouring outputs of one row, or of `tall` rows, which share inputs: that pays where
an input is widened before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_in_register, vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES, Expr
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Kernel, LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv.conv_geometry import ConvGeometry

MAX_UNROLLED_ROWS = 3  # of the kernel: the taps of more would not stay in registers all at once


class DepthwiseConv2d:
    """The design space of "depthwise_conv2d".

    inputs: x (N, C/b, H, W, b)[, residual]; weights: weight (C, 1, KH, KW), bias (C). fp32 or bfloat16 in memory.
    Parameters: `Conv2dParameters`::

        for point in DepthwiseConv2d().points(spec, features):  # features: frozenset of instruction sets
            kernel = DepthwiseConv2d().build(spec, point, features)
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        oh, ow = spec.outputs[0].shape[2:]
        heights = sorted({min(oh, r) for r in (7, 1, 28, 112)}, key=lambda r: abs(r - 7))
        if "avx512" not in features:
            return [{"pixels": p, "rows": r} for p in dict.fromkeys(min(ow, p) for p in (4, 5, 3)) for r in heights]
        conv = spec.parameters_as(Conv2dParameters)
        kernel_rows = conv.kernel[0]
        best = 8 if kernel_rows <= MAX_UNROLLED_ROWS else 14
        widths = sorted({min(ow, p) for p in (4, 7, 8, 14)}, key=lambda p: (ow % p > 0, abs(p - best)))
        found: list[Point] = [{"pixels": p, "rows": r} for p in widths for r in heights]
        if spec.inputs[0].dtype == "uint16" and kernel_rows <= MAX_UNROLLED_ROWS and oh > 1:
            taller: list[Point] = [{"pixels": min(ow, 7), "tall": 2, "rows": r} for r in heights if r > 1]
            # An exponential at the end costs more than what is saved.
            found = [*found, *taller] if "gated" in conv.activation else [*taller, *found]
        return found

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        plan = _DepthwiseConvolution(spec, point)
        function = build_prim_func([*spec.inputs, plan.weight, plan.bias, *spec.outputs], plan.emit)
        parallelism = plan.blocks * plan.chunks * plan.pixels * plan.tall
        return Kernel(function, (plan.weight, plan.bias), plan.block_size(), parallelism)


class _DepthwiseConvolution:
    """The code of a depthwise convolution; `emit` makes it, one method for each level below."""

    # The operands' buffers and the accumulators; they exist while the code is emitted.
    X: Any
    W: Any
    bias_buffer: Any
    residual: Any | None
    Y: Any
    accumulators: Any  # None where the kernel is unrolled

    def __init__(self, spec: LayerSpec, point: Point) -> None:
        self.spec, self.x, self.y = spec, spec.inputs[0], spec.outputs[0]
        self.activation = spec.parameters_as(Conv2dParameters).activation
        self.geometry = ConvGeometry.of_layer(spec)
        self.height, self.width = self.geometry.output
        self.pixels, self.rows, self.tall = int(point["pixels"]), int(point["rows"]), int(point.get("tall", 1))
        self.blocks, self.chunks = -(-self.x.shape[1] // self.x.block), -(-self.height // self.rows)
        kernel, block = self.geometry.kernel, self.x.block
        weight = pad_axis(spec.weights["weight"][:, 0], 0, block).reshape(self.blocks, block, *kernel)
        self.weight = np.ascontiguousarray(weight.transpose(0, 2, 3, 1))  # (C/b, KH, KW, b)
        self.bias = pad_axis(spec.weights["bias"], 0, block)
        self.unrolls_kernel = kernel.rows <= MAX_UNROLLED_ROWS

    def block_size(self) -> int:
        """Bytes of working set of a task: its input rows, its weights and its outputs."""
        stride = self.geometry.stride
        inputs = (self.rows * stride.rows + self.geometry.kernel.rows - 1) * self.width * stride.columns
        item = np.dtype(self.x.dtype).itemsize
        return int((inputs + self.rows * self.width) * self.x.block * item + self.weight[0].nbytes)

    def emit(self, X: Any, *rest: Any) -> None:
        """The body of the function: one task for each image, block of channels and chunk of rows."""
        self.X, (self.W, self.bias_buffer, self.Y) = X, rest[-3:]
        self.residual = rest[0] if len(self.spec.inputs) > 1 else None
        blocks, chunks, tall = self.blocks, self.chunks, self.tall
        with T.parallel(0, X.shape[0] * blocks * chunks) as task:
            in_loop = not self.unrolls_kernel
            self.accumulators = T.alloc_buffer((self.pixels,), "float32x16", scope="local") if in_loop else None
            image = T.bind(task // (blocks * chunks))
            block = T.bind(task // chunks % blocks)
            first = T.bind(task % chunks * self.rows)
            present = T.bind(T.min(self.rows, self.height - first))
            with T.serial(0, present // tall) as r:
                self._emit_rows(image, block, first + r * tall, tall)
            if self.rows % tall or self.height % self.rows % tall:  # some task ends with rows that fill no tile
                with T.serial(0, present % tall) as r:
                    self._emit_rows(image, block, first + present // tall * tall + r, 1)

    def _emit_rows(self, image: Expr, block: Expr, row: Expr, height: int) -> None:
        """All columns of `height` output rows."""
        pixels, rest = self.pixels, self.width % self.pixels
        for lane in range(0, self.x.block, LANES):
            with T.serial(0, self.width // pixels) as t:
                self._emit_tile(image, block, row, t * pixels, lane, height, pixels)
            if rest:
                self._emit_tile(image, block, row, self.width - rest, lane, height, rest)

    def _emit_tile(self, image: Expr, block: Expr, row: Expr, column: Expr, lane: int, height: int, count: int) -> None:
        """`height` x `count` outputs of 16 channels."""
        (kernel_rows, _), stride, dilation = self.geometry.kernel, self.geometry.stride, self.geometry.dilation
        sums = [T.bind(vector_load(self.bias_buffer, block * self.x.block + lane))] * (height * count)

        def add_input_row(below: Expr, uses: list[tuple[int, Expr]]) -> None:
            """Add an input row, `below` the tile's first, to output row r by kernel row u, for each use (r, u)."""
            loaded: dict[int, Expr] = {}  # by column: each input is loaded once
            for r, u in uses:
                for v in range(self.geometry.kernel.columns):
                    tap = T.bind(vector_load(self.W, block, u, v, lane))
                    for p in range(count):
                        at = p * stride.columns + v * dilation.columns
                        if at not in loaded:
                            loaded[at] = self._load_input(image, block, row, below, column, at, lane)
                        i = r * count + p
                        sums[i] = T.bind(sums[i] + loaded[at] * tap)

        if height == 1 and not self.unrolls_kernel:
            self._carry_over(sums)
            with T.serial(0, kernel_rows) as u:
                add_input_row(u * dilation.rows, [(0, u)])
                self._carry_over(sums)
        else:
            for i in range((height - 1) * stride.rows + (kernel_rows - 1) * dilation.rows + 1):
                taps = [(r, u) for r in range(height) for u in range(kernel_rows)]
                add_input_row(i, [(r, u) for r, u in taps if r * stride.rows + u * dilation.rows == i])
        for r in range(height):
            for p in range(count):
                self._finish_output(image, block, row + r, column + p, lane, sums[r * count + p])

    def _load_input(self, image: Expr, block: Expr, row: Expr, below: Expr, column: Expr, at: int, lane: int) -> Expr:
        stride, (top, left) = self.geometry.stride, self.geometry.first_tap
        where = (row * stride.rows + below + top, column * stride.columns + at + left)
        value = vector_load(self.X, image, block, *where, lane)
        return vector_in_register(value) if self.x.dtype == "uint16" else T.bind(value)

    def _carry_over(self, sums: list[Expr]) -> None:
        """Carry the sums over a turn of the loop."""
        for i, value in enumerate(sums):
            T.buffer_store(self.accumulators, value, [i])
            sums[i] = self.accumulators[i]

    def _finish_output(self, image: Expr, block: Expr, row: Expr, column: Expr, lane: int, result: Expr) -> None:
        """The epilogue of 16 channels of an output: residual, activation, and store."""
        y = self.y
        if self.residual is not None:
            halo = self.spec.inputs[1].halo
            at = (row + halo.top, column + halo.left)
            result = result + vector_load(self.residual, image, block, *at, lane)
        where = (image, block, row + y.halo.top, column + y.halo.left, lane)
        vector_store(self.Y, apply_activation(result, self.activation), *where)
