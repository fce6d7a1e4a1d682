"""The rows of the left operand of a convolution in AMX tiles, in a task's copy of the image: a band of rows of outputs.

Where a step of 64 bytes has room for more than a row of taps, two rows of the image are woven into one, or windows are
gathered to rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.memory import allocate_scratch
from veltair.compiler.codegen.vectors import Expr, ramp
from veltair.compiler.codegen.weight_packing import pad_axis
from veltair.compiler.graph.layer_spec import Activation
from veltair.compiler.graph.parameters.quantised import Window
from veltair.compiler.kernels.int8.tile_rows import DEPTH, Output, TileRows
from veltair.compiler.kernels.int8.window_rows import copy_bytes, fill_bytes
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK, TILE


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
        """How many stretches of memory a window consists of, and their bytes: rows of taps, pairs of them, or taps that
        lie apart."""
        (kh, kw), (_, dw) = self.window.kernel, self.window.dilations
        if self.is_woven:
            return -(-kh // 2), 2 * kw * self.channels
        return (kh, kw * self.channels) if dw == 1 or kw == 1 else (kh * kw, self.channels)

    @property
    def is_woven(self) -> bool:
        """Whether a step has a pair of rows of taps, of which the first has a row of each of two groups."""
        (kh, kw), strides, dilations = self.window.kernel, self.window.strides, self.window.dilations
        return kh > 1 and strides[0] == 2 and dilations == (1, 1) and 2 * kw * self.channels <= DEPTH

    @property
    def is_gathered(self) -> bool:
        """Whether short stretches are gathered to rows, so that a step has several of them."""
        return self.stretches()[1] <= DEPTH // 2 and not self.is_woven

    def rows_of_taps(self, weight: NDArray[Any]) -> NDArray[Any]:
        """Weights (taps and channels, columns) in the order of a window's row in memory, zeros between stretches."""
        (kh, kw), columns = self.window.kernel, weight.shape[-1]
        if self.is_woven:
            pairs = pad_axis(weight.reshape(kh, kw, self.channels, columns), 0, 2)
            weight = pairs.reshape(-1, 2, kw, self.channels, columns).swapaxes(1, 2)
        return pad_axis(weight.reshape(*self.stretches(), columns), 1, self.pitch()).reshape(-1, columns)

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
        pixel = self.stride // self.image.window.strides[1]
        return position * self.stride + (self.image.fill - self.image.window.pads[1]) * pixel

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


class WovenRows(PaddedRows):
    """The positions of a band in a copy of the image with pairs of rows woven into one, pixel by pixel: of few channels
    and every other row, where each row of the image is in one pair.

    ::

        rows = WovenRows(flatten(x), x.dtype, image, total, band=4)
    """

    def take(self, chunk: Expr, zero: Expr) -> None:
        super().take(chunk, zero)
        image, channels, half = self.image, self.image.channels, DEPTH // 2
        slots, wide = image.slots(self.band), image.wide * channels
        self.stride = 2 * image.window.strides[1] * channels
        self.woven = allocate_scratch((image.scratch(self.band) + BLOCK * self.stride + 2 * DEPTH,), self.dtype)
        pixels = half // channels  # that two vectors have room for
        places = [g * half + at * channels + c for at in range(pixels) for g in range(2) for c in range(channels)]
        places += [0] * (DEPTH - len(places))  # what comes next overwrites them
        step, behind = pixels * channels, image.fill * channels  # behind the last row there are zero points too
        with T.grid(slots, -(-(wide + behind) // step)) as (slot, nth):
            begin = T.bind(slot * wide + nth * step)
            rows = [self.rows[ramp(group * slots * wide + begin, half)] for group in range(2)]
            woven = T.Shuffle(rows, [T.int32(place) for place in places])
            T.buffer_store(self.woven, woven, [ramp(2 * begin, DEPTH)])

    def address(self, begin: Expr, k: Expr) -> Expr:
        return T.address_of(self.woven[begin + k * (2 * self.image.wide * self.image.channels)])


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
