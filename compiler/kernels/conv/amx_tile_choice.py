"""Where the AMX tiles of a convolution are chosen: the points of its design space that are worth measuring.

A point says which outputs are the rows of a tile (`TileMode`), how many output channels and outputs one task computes,
and in which stretches its reduction goes. `conv2d_amx.py` makes the code of a point, `amx_tile_cover.py` its addresses.
"""

from __future__ import annotations

from dataclasses import dataclass

from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv.amx_tile_cover import BLOCK, TileCover, TileMode
from veltair.compiler.kernels.conv.conv_geometry import ConvGeometry
from veltair.compiler.kernels.conv.conv_weights import folds_columns

MAX_FLAT_STRIDE = 2  # of FLAT_PLANE: what is thrown away grows with the stride, and what is read past the end
FEW_STACKS = 8  # up to which reading the weights takes long beside their use
MAX_GATHERED_BYTES = 1 << 20  # of inputs in the order of outputs: they stay in L2 until they are used
MAX_GATHERED_STACKS = 2  # of a kernel with several taps: up to 10 % faster up to here, 20 to 60 % slower with more
MAX_KEPT_STACKS = 64  # whose sums wait between two stretches of the reduction: an eighth of L2
SHARED_BLOCKS = 4  # blocks of output channels that occupy a few cores, where tasks take one each
STRETCH_STEPS = (9, 18)  # of a stretch of the reduction: its weights take a third or two of L1
MAX_TASKS = 512


@dataclass(frozen=True, slots=True)
class AmxTileChoice:
    """A point of the design space of convolutions on AMX tiles.

    >>> choice = AmxTileChoice(TileMode.FLAT_PLANE, channel_blocks=2, chunks=4, prefetches=True)
    >>> choice.as_point()
    {'mode': 'flat', 'channels': 2, 'chunks': 4, 'ahead': 1}
    >>> AmxTileChoice.from_point(choice.as_point()) == choice
    True
    """

    mode: TileMode
    channel_blocks: int  # blocks of 32 output channels of a task
    chunks: int  # tasks that share the stacks of outputs
    prefetches: bool  # whether the next weights are prefetched
    stretch: int | None = None  # blocks of input channels of a stretch of the reduction; None: one stretch

    @classmethod
    def from_point(cls, point: Point) -> AmxTileChoice:
        return cls(
            TileMode(str(point["mode"])),
            channel_blocks=int(point["channels"]),
            chunks=int(point["chunks"]),
            prefetches=bool(point["ahead"]),
            stretch=int(point["stretch"]) if "stretch" in point else None,
        )

    def as_point(self) -> Point:
        """The point under the names that tuning records have."""
        point: Point = {
            "mode": self.mode.value,
            "channels": self.channel_blocks,
            "chunks": self.chunks,
            "ahead": int(self.prefetches),
        }
        return point if self.stretch is None else {**point, "stretch": self.stretch}


def choose_amx_tiles(spec: LayerSpec) -> list[Point]:
    """The points worth measuring, as `AmxTileChoice.as_point` writes them, a good default first."""
    blocks = -(-spec.outputs[0].shape[1] // BLOCK)
    covers = {mode: TileCover(spec, mode) for mode in _promising_modes(spec)}
    found: list[AmxTileChoice] = []
    for mode, cover in covers.items():
        for channel_blocks in (c for c in (1, 2, 4) if blocks % c == 0):
            for chunks in sorted({min(cover.stacks, c) for c in (1, 2, 4, 8, 28)}):
                if blocks // channel_blocks * chunks <= MAX_TASKS:
                    for prefetches in (True, False) if cover.stacks <= FEW_STACKS else (False,):
                        found.append(AmxTileChoice(mode, channel_blocks, chunks, prefetches))
    # Enough tasks for the cores at hand, the weights of a task small: a good first guess.
    best_mode = found[0].mode
    found.sort(key=lambda choice: (choice.mode != best_mode, abs(choice.chunks - 2), choice.channel_blocks))
    stretched = [choice for mode, cover in covers.items() for choice in _stretched_choices(spec, mode, cover)]
    first = stretched[: blocks >= SHARED_BLOCKS]
    return [choice.as_point() for choice in (*first, *found, *stretched[len(first) :])]


def _promising_modes(spec: LayerSpec) -> list[TileMode]:
    """Modes worth a try, those with the fewest products first."""
    geometry = ConvGeometry.of_layer(spec)
    taps, strides = geometry.kernel.rows * geometry.kernel.columns, geometry.stride
    if spec.parameters_as(Conv2dParameters).pooled:
        return [TileMode.POOL_PAIRS]
    if folds_columns(spec):
        return [TileMode.ROW_SEGMENT]
    modes = [mode for mode in TileMode if mode != TileMode.POOL_PAIRS]
    covers: dict[TileMode, TileCover] = {mode: TileCover(spec, mode) for mode in modes}
    flat, gathered, tall = covers[TileMode.FLAT_PLANE], covers[TileMode.GATHERED], covers[TileMode.TALL]
    in_place = [TileMode.ROW_SEGMENT]
    if strides.rows == strides.columns <= MAX_FLAT_STRIDE and flat.every_stack_has_outputs():
        in_place.insert(0, TileMode.FLAT_PLANE)
    fewest = min(covers[mode].stacks for mode in in_place)
    found = [mode for mode in in_place if covers[mode].stacks <= 1.5 * fewest]
    few_gathered = gathered.stacks <= min(MAX_GATHERED_STACKS, fewest - 1)
    if strides.rows * strides.columns > 1 and (taps == 1 or few_gathered):
        found.insert(0, TileMode.GATHERED)
    found.sort(key=lambda mode: covers[mode].stacks)
    one_tall_stack = taps > 1 == tall.stacks < fewest and tall.every_stack_has_outputs()
    if one_tall_stack and tall.gathered_bytes(spec) <= MAX_GATHERED_BYTES:
        found.append(TileMode.TALL)
    return found


def _stretched_choices(spec: LayerSpec, mode: TileMode, cover: TileCover) -> list[AmxTileChoice]:
    """Choices whose reduction goes through all stacks of a task stretch by stretch."""
    conv = spec.parameters_as(Conv2dParameters)
    depth, taps = spec.inputs[0].physical[1], conv.kernel[0] * conv.kernel[1]
    if conv.groups > 1 or cover.tiles != 2:  # few products, or few output channels
        return []
    lengths = dict.fromkeys(max(1, steps // taps) for steps in STRETCH_STEPS)
    return [
        AmxTileChoice(mode, 1, chunks, prefetches=True, stretch=stretch)
        for chunks in (1, 2)
        for stretch in lengths
        if depth >= 2 * stretch and -(-cover.stacks // chunks) <= MAX_KEPT_STACKS
    ]
