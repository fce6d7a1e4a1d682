"""Where AMX tiles find the rows of the left operand: in the input, in a copy of rows, in a copy of a padded image.

A position is a row of the products of a task. Tiles load 16 positions that begin a fixed distance apart, 64 bytes of
each a step. Bytes behind the end of a row meet weights of 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import allocate_scratch
from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters, Window
from veltair.compiler.kernels.int8.window_rows import copy_bytes, copy_rows, copy_windows, fill_bytes
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, TILE

DEPTH = 64  # 8-bit values in a tile row: the products of one step of the reduction


class Output(NamedTuple):
    """A row of sums of a register block, and the row of the output that it is.

    >>> Output(half=0, r=3, row=35, inside=None).row
    35
    """

    half: Expr  # which tile of the block
    r: Expr  # which row of the tile
    row: Expr
    inside: Expr | None  # whether there is such an output; None: there is


class TileRows(Protocol):
    """The rows of the left operand; methods emit code.

    ::

        rows.take(chunk, zero)  # in a task
        begin = rows.begin(position)
        load_tile(register, rows.address(begin, k), rows.stride)
    """

    stride: int  # bytes from one row of a tile to the next
    chunks: Expr  # tasks
    count: Expr  # positions of the task
    height: Expr  # of a tile

    def take(self, chunk: Expr, zero: Expr) -> None:
        """Begin a task. zero: the input's zero point."""

    def begin(self, position: Expr) -> Expr:
        """Where the tile begins whose first row is this position."""

    def address(self, begin: Expr, k: Expr) -> Expr:
        """Of the kth step of a tile that begins there."""

    def output(self, first: Expr, n: Expr) -> Output:
        """The nth position of the block that begins at `first`; behind the last position, that one."""


class ChunkedRows(TileRows):
    """Positions are rows of the output, `step` of them a task.

    ::

        class Rows(ChunkedRows): ...
    """

    def __init__(self, total: Expr, step: int) -> None:
        self.total, self.step, self.chunks = total, step, T.ceildiv(total, step)

    def take(self, chunk: Expr, zero: Expr) -> None:
        self.first = T.bind(chunk * self.step)
        self.count = T.bind(T.min(self.step, self.total - self.first))


class RowsInPlace(ChunkedRows):
    """Rows that fill whole steps are read where they lie; the last tile of a layer moves up and computes some twice.

    ::

        rows = RowsInPlace(x, total, step)
    """

    def __init__(self, x: Any, total: Expr, step: int) -> None:
        super().__init__(total, step)
        self.source, self.stride = x, int(x.shape[1])

    def take(self, chunk: Expr, zero: Expr) -> None:
        super().take(chunk, zero)
        self.height = T.bind(T.min(self.total, TILE))

    def begin(self, position: Expr) -> Expr:
        return T.max(T.min(self.first + position, self.total - TILE), 0)

    def address(self, begin: Expr, k: Expr) -> Expr:
        return T.address_of(self.source[begin, k * DEPTH])

    def output(self, first: Expr, n: Expr) -> Output:
        half, r = T.bind(n // TILE), T.bind(T.min(n % TILE, self.height - 1))
        return Output(half, r, T.bind(self.begin(first + half * TILE) + r), None)


class CopiedRows(ChunkedRows):
    """Rows of other lengths or at some places only, a task's rows copied to scratch memory.

    ::

        rows = CopiedRows(flatten(x), spec, total, step)
    """

    def __init__(self, source: Any, spec: LayerSpec, total: Expr, step: int) -> None:
        super().__init__(total, step)
        self.source, self.spec, self.depth = source, spec, len(spec.weights["weight"])
        self.stride = -(-self.depth // DEPTH) * DEPTH

    def take(self, chunk: Expr, zero: Expr) -> None:
        super().take(chunk, zero)
        self.height = T.int32(TILE)
        x, window = self.spec.inputs[0], self.spec.parameters_as(QuantisedProductParameters).window
        self.rows = allocate_scratch((self.step, self.stride), x.dtype)
        if window is None or window.is_point:
            copy_rows(self.source, self.rows, self.depth, self.first, self.count)
        else:
            tensors, padding = (x, self.spec.outputs[0]), T.bind(T.cast(zero, x.dtype))
            copy_windows(self.source, self.rows, padding, tensors, window, self.first, self.count)

    def begin(self, position: Expr) -> Expr:
        return position

    def address(self, begin: Expr, k: Expr) -> Expr:
        return T.address_of(self.rows[begin, k * DEPTH])

    def output(self, first: Expr, n: Expr) -> Output:
        n = T.bind(T.min(n, self.count - first - 1))
        return Output(T.bind(n // TILE), T.bind(n % TILE), T.bind(self.first + first + n), None)


class PaddedImage(NamedTuple):
    """How a band of output rows finds its input: rows of the image with the input's zero point around them.

    Rows that a stride of s skips to lie in s groups, so that neighbouring rows of outputs read neighbouring rows of a
    group. Then the positions of a band lie one stride apart, also from one row of outputs to the next: `across` of them
    in each, the last of which are no outputs. Zero points in front of a row are those behind the row before it.

    >>> window = Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1))
    >>> x, y = Activation("x", "uint8", (1, 8, 9, 9), 8), Activation("y", "uint8", (1, 4, 5, 5), 4)
    >>> image = PaddedImage.of(x, y, window)
    >>> image.across, image.groups, image.slots(5), image.taps()
    (5, (0, 1), 6, [(0, 0), (1, 0), (0, 1)])
    """

    channels: int
    size: tuple[int, int]  # of the input: rows, columns
    outputs: tuple[int, int]
    window: Window
    fill: int  # columns of zero points in front of a row
    wide: int  # columns of a row with them
    across: int  # positions of a row of outputs
    groups: tuple[int, ...]  # remainders of the rows that are read, divided by the stride

    @classmethod
    def of(cls, x: Activation, y: Activation, window: Window) -> PaddedImage:
        (_, channels, height, width), (_, _, *outputs) = x.shape, y.shape
        (kh, _), (sh, sw), (dh, _) = window.kernel, window.strides, window.dilations
        fill = max(window.pads[1], window.pads[3])
        across = -(-(width + fill) // sw)
        groups = tuple(sorted({u * dh % sh for u in range(kh)}))
        return cls(channels, (height, width), (outputs[0], outputs[1]), window, fill, across * sw, across, groups)

    def taps(self) -> list[tuple[int, int]]:
        """Of each row of taps its group of rows and the row there, for the first row of outputs."""
        (kh, _), (sh, _), (dh, _) = self.window.kernel, self.window.strides, self.window.dilations
        return [(self.groups.index(u * dh % sh), u * dh // sh) for u in range(kh)]

    def slots(self, band: int) -> int:
        """Rows of a group that `band` rows of outputs read."""
        return band + max(slot for _, slot in self.taps())

    def stretches(self) -> tuple[int, int]:
        """How many stretches of memory a window consists of, and their bytes: rows of taps, or taps that lie apart."""
        (kh, kw), (_, dw) = self.window.kernel, self.window.dilations
        return (kh, kw * self.channels) if dw == 1 or kw == 1 else (kh * kw, self.channels)

    @property
    def is_gathered(self) -> bool:
        """Whether short stretches are gathered to rows, so that a step has several of them."""
        return self.stretches()[1] <= DEPTH // 2

    def pitch(self) -> int:
        """Bytes from one stretch to the next in a window's row: whole steps, or a vector where they are gathered."""
        size = self.stretches()[1]
        return 1 << (size - 1).bit_length() if self.is_gathered else -(-size // DEPTH) * DEPTH

    def depth(self) -> int:
        """Bytes of a window's row: whole steps."""
        return -(-self.stretches()[0] * self.pitch() // DEPTH) * DEPTH

    def scratch(self, band: int) -> int:
        """Bytes of a band's copy, and of what tiles may read behind it."""
        behind = self.fill + BLOCK * self.window.strides[1] + self.window.kernel[1] * self.window.dilations[1]
        return (len(self.groups) * self.slots(band) * self.wide + behind) * self.channels + DEPTH


class PaddedRows(TileRows):
    """The positions of a band of output rows in a copy of the image around it.

    ::

        rows = PaddedRows(flatten(x), x.dtype, image, total, band=4)
    """

    def __init__(self, source: Any, dtype: str, image: PaddedImage, total: Expr, band: int) -> None:
        """total: outputs of all images."""
        self.source, self.dtype, self.image, self.band = source, dtype, image, band
        self.stride = image.window.strides[1] * image.channels
        self.bands = -(-image.outputs[0] // band)
        self.chunks = total // (image.outputs[0] * image.outputs[1]) * self.bands

    def take(self, chunk: Expr, zero: Expr) -> None:
        image, (height, _) = self.image, self.image.outputs
        self.nth, self.top = T.bind(chunk // self.bands), T.bind(chunk % self.bands * self.band)
        self.count = T.bind(T.min(self.band, height - self.top) * image.across)
        self.height = T.int32(TILE)
        self.rows = allocate_scratch((image.scratch(self.band),), self.dtype)
        self._copy(T.bind(T.cast(zero, self.dtype)))

    def _copy(self, padding: Expr) -> None:
        image, (height, width), channels = self.image, self.image.size, self.image.channels
        (sh, _), slots, wide = image.window.strides, image.slots(self.band), image.wide * image.channels
        first, behind = image.fill * channels, image.wide - image.fill - width
        for at, remainder in enumerate(image.groups):
            with T.serial(0, slots) as slot:
                target = T.bind((at * slots + slot) * wide)
                row = T.bind((self.top + slot) * sh + remainder - image.window.pads[0])
                with T.If(T.And(row >= 0, row < height)):
                    with T.Then():
                        fill_bytes(padding, self.rows, (target,), first)
                        begin = T.bind((self.nth * height + row) * (width * channels))
                        copy_bytes(self.source, begin, self.rows, (target + first,), width * channels)
                        fill_bytes(padding, self.rows, (target + first + width * channels,), behind * channels)
                    with T.Else():
                        fill_bytes(padding, self.rows, (target,), wide)
        fill_bytes(padding, self.rows, (T.int32(len(image.groups) * slots * wide),), first)

    def begin(self, position: Expr) -> Expr:
        return position * self.stride + (self.image.fill - self.image.window.pads[1]) * self.image.channels

    def address(self, begin: Expr, k: Expr) -> Expr:
        steps = self.image.pitch() // DEPTH
        return T.address_of(self.rows[begin + self._stretch(k // steps) + k % steps * DEPTH])

    def _stretch(self, nth: Expr) -> Expr:
        """Where the nth stretch of the first window lies."""
        image, (kh, kw) = self.image, self.image.window.kernel
        row, column = (nth, 0) if image.stretches()[0] == kh else (nth // kw, nth % kw * image.window.dilations[1])
        wide, slots = image.wide * image.channels, image.slots(self.band)
        offset = T.int32(0)
        for u, (group, slot) in list(enumerate(image.taps()))[1:]:
            offset = T.if_then_else(row == u, (group * slots + slot) * wide, offset)
        return offset + column * image.channels

    def output(self, first: Expr, n: Expr) -> Output:
        n = T.bind(T.min(n, self.count - first - 1))
        (height, width), across = self.image.outputs, self.image.across
        y, x = T.bind((first + n) // across), T.bind((first + n) % across)
        row = T.bind(((self.nth * height + self.top + y) * width) + T.min(x, width - 1))
        return Output(T.bind(n // TILE), T.bind(n % TILE), row, x < width if across > width else None)


class GatheredRows(PaddedRows):
    """The windows of a band, a row each, gathered from the copy of the image: of few channels, where a step of 64 bytes
    takes several rows of taps.

    ::

        rows = GatheredRows(flatten(x), x.dtype, image, total, band=4)
    """

    def take(self, chunk: Expr, zero: Expr) -> None:
        super().take(chunk, zero)
        image, pitch = self.image, self.image.pitch()
        self.gathered = allocate_scratch((-(-self.band * image.across // BLOCK) * BLOCK, image.depth()), self.dtype)
        with T.serial(0, self.count) as position:
            begin = T.bind(super().begin(position))
            for nth in range(image.stretches()[0]):
                stretch = self.rows[ramp(begin + self._stretch(T.int32(nth)), pitch)]
                T.buffer_store(self.gathered, stretch, [position, ramp(T.int32(nth * pitch), pitch)])
        self.stride = image.depth()

    def begin(self, position: Expr) -> Expr:
        return position

    def address(self, begin: Expr, k: Expr) -> Expr:
        return T.address_of(self.gathered[begin, k * DEPTH])
