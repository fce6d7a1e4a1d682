"""Pooling on blocked activations."""

from __future__ import annotations

from typing import Any

from tvm.script.ir_builder import tirx as T

from veltair.compiler.ir import Kernel, LayerSpec, Point
from veltair.compiler.kernels.emit import LANES, Expr, load, primitive, splat, store
from veltair.compiler.kernels.spatial import inside, mean_of_plane, row_bytes, rows_of_a_task

LOWEST = -3.4028234663852886e38
PIXELS = 4  # neighbouring outputs that share what they read


class Pool2d:
    """Maximum or average over windows; padding never counts as a value.

    Windows that leave the image at the left or the right are cut one by one; all others run in one loop, uncut.
    """

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return rows_of_a_task(spec.outputs[0].shape[2])

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        height, width = x.shape[2:]
        oh, ow = y.shape[2:]
        (kh, kw), (sh, sw) = spec.attributes["kernel"], spec.attributes["strides"]
        top, left, bottom, right = spec.attributes["pads"]
        rows = int(point["rows"])
        chunks = -(-oh // rows)
        blocks = -(-x.shape[1] // x.block)
        maximum = spec.attributes["kind"] == "max"
        count_pad = bool(spec.attributes.get("count_include_pad", 0))
        uncut = [c for c in range(ow) if c * sw >= left and c * sw - left + kw <= width]
        inner = (uncut[0], uncut[-1] + 1) if uncut else (0, 0)

        def body(X: Any, Y: Any) -> None:
            def tile(sums: Any, image: Expr, block: Expr, lane: int, row: Expr, column: Expr, count: int) -> None:
                """`count` outputs from (row, column) on; more than one only where no window is cut."""
                cut = isinstance(column, int)
                near, far = (max(column * sw - left, 0), min(column * sw - left + kw, width)) if cut else (0, kw)
                up, low = T.bind(T.max(row * sh - top, 0)), T.bind(T.min(row * sh - top + kh, height))
                for p in range(count):
                    T.buffer_store(sums, splat(LOWEST if maximum else 0.0), [p])
                with T.serial(0, low - up) as u:
                    found: dict[int, Expr] = {}
                    for p in range(count):
                        for v in range(near, far):
                            at = v + p * sw
                            if at not in found:
                                start = at if cut else column * sw - left + at
                                found[at] = T.bind(load(X, *inside(x, image, block, up + u, start, lane)))
                            value = found[at]
                            T.buffer_store(sums, T.max(sums[p], value) if maximum else sums[p] + value, [p])
                taps: Expr = (low - up) * (far - near)
                if count_pad:  # cut only where the window leaves the padded image
                    across = min(column * sw + kw, width + left + right) - column * sw if cut else kw
                    taps = (T.min(row * sh + kh, height + top + bottom) - row * sh) * across
                for p in range(count):
                    result = sums[p]
                    if not maximum:
                        result = T.Div(result, T.broadcast(T.cast(T.max(taps, 1), "float32"), LANES))
                    store(Y, result, *inside(y, image, block, row, column + p, lane))

            with T.parallel(0, X.shape[0] * blocks * chunks) as task:
                sums = T.alloc_buffer((PIXELS,), "float32x16", scope="local")
                image, block = T.bind(task // (blocks * chunks)), T.bind(task // chunks % blocks)
                first = T.bind(task % chunks * rows)
                with T.serial(0, T.min(rows, oh - first)) as r:
                    row = T.bind(first + r)
                    for lane in range(0, x.block, LANES):
                        for column in (*range(inner[0]), *range(inner[1], ow)):
                            tile(sums, image, block, lane, row, column, 1)
                        steps, rest = divmod(inner[1] - inner[0], PIXELS)
                        with T.serial(0, steps) as t:
                            tile(sums, image, block, lane, row, inner[0] + t * PIXELS, PIXELS)
                        if rest:
                            last = T.bind(T.int32(inner[1] - rest))
                            tile(sums, image, block, lane, row, last, rest)

        block_size = (rows * sh + kh) * row_bytes(x) + rows * row_bytes(y)
        return Kernel(primitive([x, y], body), (), block_size, blocks * chunks)


class GlobalAveragePool:
    """(N, C/b, H, W, b) to row-major (N, C, 1, 1)."""

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return [{}]

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        x, y = spec.inputs[0], spec.outputs[0]
        channels, height, _ = x.shape[1:]
        blocks = -(-channels // x.block)

        def body(X: Any, Y: Any) -> None:
            with T.parallel(0, X.shape[0] * blocks) as task:
                means = T.alloc_buffer((LANES,), "float32", scope="local")
                image, block = T.bind(task // blocks), T.bind(task % blocks)
                for start in range(0, x.block, LANES):
                    store(means, mean_of_plane(x, X, image, block, start), 0)
                    channel = T.bind(block * x.block + start)
                    with T.serial(0, T.max(T.min(LANES, channels - channel), 0)) as lane:
                        T.buffer_store(Y, means[lane], [image, channel + lane, 0, 0])

        return Kernel(primitive([x, y], body), (), height * row_bytes(x), blocks)
