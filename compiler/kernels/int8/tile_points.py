"""Points of the design space of 8-bit products in AMX tiles: how many rows and panels of columns a task takes, and
whether it meets all its rows with a panel before the next one."""

from __future__ import annotations

from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.kernels.int8.image_rows import PaddedImage
from veltair.compiler.kernels.int8.product_operands import rows_and_width
from veltair.compiler.kernels.int8.tile_rows import DEPTH
from veltair.compiler.kernels.matmul.amx_tiles import BLOCK

MOST_COPIED = 1 << 19  # bytes of a task's copied rows: with the weights that they meet they stay in L2
FAR_BYTES = 1 << 17  # of weights that are worth fetching while those before them are in use
TALL = (4, 2, 1, 8)  # blocks of rows of a task
WINDOW_POINTS = 6  # of a convolution's bands
# Cycles of a step's products and of the epilogue of a block, of a byte that is copied, of a step's weights from L3.
PRODUCT_CYCLES, FINISH_CYCLES, COPY_CYCLES, WEIGHT_CYCLES = 64, 256, 1 / 16, 128
TASKS = 4  # at least, where the layer has so many register blocks: they are shared among cores


def is_possible(spec: LayerSpec) -> bool:
    """Whether tiles can compute a layer: weights of 8 bits, and one group."""
    parameters = spec.parameters_as(QuantisedProductParameters)
    return not parameters.wide and parameters.groups == 1


def amx_points(spec: LayerSpec) -> list[Point]:
    """Points of a layer that is possible; the first is right for most layers."""
    rows, width = rows_and_width(spec.outputs[0])
    panels = -(-width // panel_width(spec))
    if (image := padded_image(spec)) is not None:
        return _window_points(spec, image, panels)
    most = spec.most(rows)
    blocks = -(-most // BLOCK)
    depth = -(-len(spec.weights["weight"]) // DEPTH) * DEPTH if is_copied(spec) else 0
    is_far = spec.weights["weight"].nbytes >= FAR_BYTES
    found: list[tuple[bool, int, Point]] = []
    for tall in TALL:
        if tall > 1 and (tall > blocks or tall * BLOCK * depth > MOST_COPIED):
            continue
        chunks = -(-blocks // tall)
        for taken in _shares(panels, chunks):
            groups = panels // taken
            copies = groups if depth else 1  # each group of panels copies the rows that it meets
            point: Point = {"unit": "amx", "rows": tall * BLOCK, "panels": taken}
            few = chunks * groups < TASKS
            if is_far and min(tall, blocks) > 1 and taken > 1:
                found.append((few, copies, {**point, "inside": "rows"}))
            found.append((few, copies, point))
    return [point for _, _, point in sorted(found, key=lambda each: each[:2])]


def _window_points(spec: LayerSpec, image: PaddedImage, panels: int) -> list[Point]:
    """Bands of output rows by panels: those first of which the busiest of four cores needs the fewest cycles."""
    steps, height = image.depth() // DEPTH * (panel_width(spec) // BLOCK), image.outputs[0]
    images = spec.most(spec.outputs[0].shape[0])
    found: list[tuple[float, int, int]] = []
    for band in range(1, height + 1):
        copied = len(image.groups) * image.slots(band) * image.wide * image.channels
        if image.is_gathered:
            copied += band * image.across * image.depth()
        if image.is_woven:
            copied *= 2
        if band > 1 and copied > MOST_COPIED:
            break
        bands = -(-height // band)
        if band > -(-height // bands):  # fewer rows make as many bands
            continue
        blocks = -(-band * image.across // BLOCK)
        for taken in (n for n in range(1, panels + 1) if panels % n == 0):
            block = steps * PRODUCT_CYCLES + FINISH_CYCLES
            cycles = blocks * taken * block + copied * COPY_CYCLES + taken * steps * WEIGHT_CYCLES
            rounds = -(-images * bands * (panels // taken) // TASKS)
            found.append((rounds * cycles, band, taken))
    return [{"unit": "amx", "band": band, "panels": taken} for _, band, taken in sorted(found)[:WINDOW_POINTS]]


def _shares(panels: int, chunks: int) -> list[int]:
    """How many panels a task takes: divisors; first the most with which there are enough tasks, or the fewest.

    >>> _shares(64, 2), _shares(6, 8)
    ([32, 64, 16], [6, 3])
    """
    divisors = [n for n in range(panels, 0, -1) if panels % n == 0]
    at = next((i for i, n in enumerate(divisors) if chunks * (panels // n) >= TASKS), len(divisors) - 1)
    return list(dict.fromkeys((divisors[at], divisors[0], *divisors[at + 1 : at + 2])))


def panel_width(spec: LayerSpec) -> int:
    """Columns that are finished together: 64 of 8 bits fill a cache line."""
    output = spec.outputs[0]
    return 2 * BLOCK if output.physical[-1] > BLOCK and output.dtype != "float32" else BLOCK


def is_copied(spec: LayerSpec) -> bool:
    """Whether the rows of a product fill no whole steps, or are not all rows of the input."""
    window = spec.parameters_as(QuantisedProductParameters).window
    return bool(window and not window.is_point) or len(spec.weights["weight"]) % DEPTH != 0


def padded_image(spec: LayerSpec) -> PaddedImage | None:
    """The image of a convolution with more taps than one."""
    window = spec.parameters_as(QuantisedProductParameters).window
    if window is None or window.kernel == (1, 1):
        return None
    return PaddedImage.of(spec.inputs[0], spec.outputs[0], window)
