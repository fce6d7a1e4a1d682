"""Products of 8-bit integers in AMX tiles equal exact sums, rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from int8_products import CASES, POINT, SQUARE, STEPPED, Parameters, agrees, product
from run_kernels import run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import Addend, Window
from veltair.compiler.kernels.int8.products_amx import pack_int8_tiles
from veltair.compiler.kernels.int8.tile_points import amx_points, is_possible
from veltair.compiler.kernels.int8.tile_rows import DEPTH
from veltair.machine.isa import cpu_features

needs_tiles = pytest.mark.skipif("amx_int8" not in cpu_features(), reason="this CPU has no AMX int8 tiles")
FEATURES = frozenset({"avx2", "avx512", "avx512_vnni", "amx_bf16", "amx_int8"})


def convolution(size: int, stride: int, pad: int) -> Window:
    return Window((size, size), (stride, stride), (1, 1), (pad,) * 4)


TILED = {
    **{name: spec for name, spec in CASES.items() if is_possible(spec)},
    "rows read where they lie, the last tile moves up": product((-37, 128), (-37, 96), Parameters("relu")),
    "fewer rows than a tile has": product(
        (-2, 64), (-2, 32), Parameters("none", None, Addend.RESIDUAL), ("int8", "uint8")
    ),
    "many panels, dynamic": product((-41, 192), (-41, 200), Parameters("gelu", dynamic=True), ("uint8", "float32")),
    "pointwise, where it lies": product(
        (-1, 64, 9, 7), (-1, 256, 9, 7), Parameters("none", POINT, Addend.RESIDUAL, "uint8", "relu")
    ),
    "3x3 of whole steps": product((-1, 64, 14, 14), (-1, 64, 14, 14), Parameters("relu", SQUARE)),
    "every other place, whole steps": product((-1, 64, 13, 13), (-1, 128, 7, 7), Parameters("none", STEPPED)),
    "few channels, gathered": product((-1, 3, 12, 11), (-1, 80, 12, 11), Parameters("relu", convolution(5, 1, 2))),
    "few channels, pairs of rows": product((-1, 3, 23, 21), (-1, 80, 12, 11), Parameters("relu", convolution(7, 2, 3))),
    "one channel, pairs of rows that fill vectors": product(
        (-1, 1, 30, 31), (-1, 32, 15, 15), Parameters("none", convolution(4, 2, 1)), ("int8", "uint8")
    ),
    "five channels, pairs of rows, zeros behind the image alone": product(
        (-1, 5, 12, 12), (-1, 32, 6, 6), Parameters("none", Window((3, 3), (2, 2), (1, 1), (0, 0, 1, 1)))
    ),
    "every other place, rows in two groups": product(
        (-1, 64, 11, 9), (-1, 96, 6, 5), Parameters("none", convolution(3, 2, 1), Addend.RESIDUAL, "uint8", "relu")
    ),
    "zeros behind the image alone": product(
        (-1, 64, 8, 8), (-1, 64, 4, 4), Parameters("relu", Window((3, 3), (2, 2), (1, 1), (0, 0, 1, 1)))
    ),
    "zeros above and left": product(
        (-1, 40, 6, 7), (-1, 130, 6, 7), Parameters("none", Window((3, 3), (1, 1), (1, 1), (2, 2, 0, 0)))
    ),
    "rows of taps alone": product(
        (-1, 24, 7, 9), (-1, 64, 7, 4), Parameters("none", Window((1, 4), (1, 2), (1, 1), (0, 1, 0, 1)))
    ),
    "columns of taps that lie apart, every third row": product(
        (-1, 64, 13, 5), (-1, 64, 3, 5), Parameters("none", Window((3, 1), (3, 1), (2, 1), (1, 0, 0, 0)))
    ),
    "taps that lie apart, few channels": product(
        (-1, 8, 9, 9),
        (-1, 40, 4, 4),
        Parameters("none", Window((3, 3), (2, 2), (2, 2), (1, 1, 1, 1)), dynamic=True),
        ("uint8", "float32"),
    ),
    "signed, 5x5": product(
        (-1, 96, 5, 6), (-1, 192, 5, 6), Parameters("clip:-0.5:1.5", convolution(5, 1, 2)), ("int8", "int8")
    ),
    "weights that are far away": product((-70, 512), (-70, 320), Parameters("none")),
    "one column": product((-33, 64), (-33, 1), Parameters("none"), ("uint8", "float32")),
}


@needs_tiles
@pytest.mark.parametrize("name", TILED)
def test_tiles_equal_the_reference(name: str) -> None:
    spec = TILED[name]
    for point in amx_points(spec)[:: 3 if spec.op == "conv2d_int8" else 1]:
        agrees(spec, point, 3, "")
    agrees(spec, amx_points(spec)[0], 1, "")


def test_all_rows_may_meet_a_panel_of_far_weights_before_the_next_one() -> None:
    points = amx_points(TILED["weights that are far away"])
    inside = [point for point in points if point.get("inside") == "rows"]
    assert inside
    for point in inside:  # where nothing is searched, it is taken rather than its twin
        assert points.index(point) < points.index({name: value for name, value in point.items() if name != "inside"})
    assert not any("inside" in point for point in amx_points(TILED["one column"]))


def test_tiles_come_first_where_the_cpu_has_them_and_they_fit() -> None:
    """Points of dot products stay in the space: at small batches they may be faster."""
    for name, spec in CASES.items():
        units = [point.get("unit") for point in SPACES[spec.op].points(spec, FEATURES)]
        assert (units[0] == "amx") == (is_possible(spec)), name
        assert None in units, name
        assert "amx" not in [p.get("unit") for p in SPACES[spec.op].points(spec, FEATURES - {"amx_int8"})]


@pytest.mark.parametrize("signed", [False, True])
def test_packed_tiles_and_their_compensation(signed: bool) -> None:
    """Unpacked by hand, a product of one row equals that of what the steps stand for; bytes are not shifted."""
    spec: LayerSpec = product((1, 70), (1, 40), Parameters("none"), ("int8" if signed else "uint8", "uint8"))
    packed, start = pack_int8_tiles(spec)
    columns = packed.transpose(1, 3, 5, 0, 2, 4).reshape(-1, start.size)
    assert len(columns) == 2 * DEPTH and not columns[70:].any() and not columns[:, 40:].any()
    rng: Any = np.random.default_rng(1)
    steps = rng.integers(-128 if signed else 0, 128 if signed else 256, 70)
    zero = -7 if signed else 113
    meant = (steps - zero) @ spec.weights["weight"].astype(np.int64)
    assert np.array_equal((start + steps @ columns[:70].astype(np.int64))[:40], meant)


@needs_tiles
def test_tiles_read_nothing_behind_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input ends at a page that nobody may read."""
    import run_kernels

    spec = TILED["rows read where they lie, the last tile moves up"]
    x = np.full((37, 128), 200, np.uint8)
    monkeypatch.setattr(run_kernels, "aligned_copy", lambda a: run_kernels.between_guard_pages(a, 64))
    for point in amx_points(spec):
        (found,) = run_kernel(spec, point, [x])
        assert (found == found[0]).all()
