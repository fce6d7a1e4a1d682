"""Which points of the design space of convolutions on AMX tiles are worth measuring."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.graph.parameters.vision import Conv2dParameters
from veltair.compiler.kernels.conv.amx_tile_cover import BLOCK, Cover, folds
from veltair.compiler.kernels.conv.conv_geometry import geometry

FLAT_STRIDE = 2  # greatest stride of "flat" mode: what is thrown away grows with it, and what is read past the end
FEW = 8  # stacks up to which reading the weights takes long beside their use
COPIED_BYTES = 1 << 20  # of inputs in the order of outputs, at most: they stay in L2 until they are used
COPIED_STACKS = 2  # of a kernel with several taps: up to 10 % faster up to here, 20 to 60 % slower with more
KEPT_STACKS = 64  # whose sums wait between two stretches of the reduction: an eighth of L2
SHARED = 4  # blocks of output channels that occupy a few cores, where tasks take one each
STRETCHES = (9, 18)  # steps of a stretch: its weights take a third or two of L1


def points(spec: LayerSpec) -> list[Point]:
    """mode: see `Cover`. channels: blocks of output channels of a task. chunks: tasks that share the stacks of outputs.
    ahead: whether the next weights are prefetched. stretch, where there is one: blocks of input channels of a stretch
    of the reduction."""
    blocks = -(-spec.outputs[0].shape[1] // BLOCK)
    covers = {mode: Cover(spec, mode) for mode in _modes(spec)}
    found: list[Point] = []
    for mode, cover in covers.items():
        count = cover.stacks
        for channels in (c for c in (1, 2, 4) if blocks % c == 0):
            for chunks in sorted({min(count, c) for c in (1, 2, 4, 8, 28)}):
                if blocks // channels * chunks <= 512:
                    for ahead in (1, 0) if count <= FEW else (0,):
                        found.append({"mode": mode, "channels": channels, "chunks": chunks, "ahead": ahead})
    # Enough tasks for the cores at hand, the weights of a task small: a good first guess.
    found = sorted(found, key=lambda p: (p["mode"] != found[0]["mode"], abs(int(p["chunks"]) - 2), p["channels"]))
    stretched = [point for mode, cover in covers.items() for point in _stretched(spec, mode, cover)]
    first = stretched[: blocks >= SHARED]
    return [*first, *found, *stretched[len(first) :]]


def _modes(spec: LayerSpec) -> list[str]:
    """Modes worth a try, the least products first."""
    *_, kh, kw, sh, sw, _, _ = geometry(spec)
    if spec.parameters_as(Conv2dParameters).pooled:
        return ["pairs"]
    if folds(spec):
        return ["row"]
    covers = {mode: Cover(spec, mode) for mode in ("flat", "row", "dense", "tall")}
    whole = ["flat", "row"] if sh == sw <= FLAT_STRIDE and covers["flat"].serves() else ["row"]
    least = min(covers[mode].stacks for mode in whole)
    found = [mode for mode in whole if covers[mode].stacks <= 1.5 * least]
    dense = covers["dense"]
    if sh * sw > 1 and (kh * kw == 1 or dense.stacks <= min(COPIED_STACKS, least - 1)):
        found.insert(0, "dense")
    found.sort(key=lambda mode: covers[mode].stacks)
    tall = covers["tall"]
    if kh * kw > 1 == tall.stacks < least and tall.serves() and tall.copied_bytes(spec) <= COPIED_BYTES:
        found.append("tall")
    return found


def _stretched(spec: LayerSpec, mode: str, cover: Cover) -> list[Point]:
    """Points whose reduction goes through all stacks of a task stretch by stretch."""
    conv = spec.parameters_as(Conv2dParameters)
    depth, (kh, kw) = spec.inputs[0].physical[1], conv.kernel
    if conv.groups > 1 or cover.height != 2:  # few products, or few output channels
        return []
    lengths = dict.fromkeys(max(1, steps // (kh * kw)) for steps in STRETCHES)
    return [
        {"mode": mode, "channels": 1, "chunks": chunks, "ahead": 1, "stretch": stretch}
        for chunks in (1, 2)
        for stretch in lengths
        if depth >= 2 * stretch and -(-cover.stacks // chunks) <= KEPT_STACKS
    ]
