"""Convolutions on AMX tiles against ONNX Runtime, in every mode."""

from __future__ import annotations

import pytest
from conv_layers import bare, normal, pooled, tiles
from run_kernels import compile_ahead, halo_is_zero, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec, Point
from veltair.machine.isa import cpu_features


@pytest.mark.slow
@pytest.mark.skipif("amx_bf16" not in cpu_features(), reason="this CPU has no AMX bfloat16 tiles")
@pytest.mark.parametrize(
    ("modes", "spec"),
    [
        pytest.param("flat", bare(tiles((40, 70), (7, 9), 1, residual=True), "relu"), id="the last pair moves up"),
        pytest.param(
            "flat", bare(tiles((64, 33), (5, 6), 1, residual=True), "gated-sigmoid"), id="fewer outputs than a pair"
        ),
        pytest.param("flat row", tiles((48, 40), (9, 11), 1, residual=True), id="one or two steps, halos"),
        pytest.param("flat row", tiles((33, 64), (14, 14), 3, residual=True, batch=2), id="residual of another halo"),
        pytest.param("flat tall", tiles((256, 40), (7, 7), 3, residual=True), id="many steps"),
        pytest.param("row", tiles((70, 40), (9, 27), 3, stride=2), id="stride"),
        pytest.param("dense flat row tall", tiles((40, 70), (13, 13), 3, stride=2, batch=2), id="copied inputs"),
        pytest.param("dense flat row", tiles((64, 96), (14, 14), 1, stride=2, batch=2), id="pointwise with stride"),
        pytest.param("dense flat", bare(tiles((64, 96), (7, 9), 1, stride=2)), id="fewer outputs than a pair, copied"),
        pytest.param("row", tiles((3, 40), (23, 37), 7, stride=2), id="image"),
        pytest.param("flat row", tiles((160, 40), (1, 1), 1, batch=3), id="one output"),
        pytest.param("flat row", tiles((64, 64), (19, 19), 3, dilation=6, pads=(6, 6, 6, 6)), id="dilation"),
        pytest.param("flat", tiles((640, 40), (5, 6), 1, residual=True, batch=2), id="uneven stretches"),
        pytest.param("flat row", tiles((40, 16), (9, 33), 3, residual=True, batch=2), id="half a block of outputs"),
        pytest.param("pairs", pooled(tiles((3, 16), (37, 70), 3), 1, "leaky:0.1"), id="pooled image"),
        pytest.param("pairs", pooled(tiles((40, 70), (9, 33), 3, batch=2), 0, "relu"), id="pooled, odd rest left out"),
        pytest.param("pairs", pooled(tiles((160, 33), (9, 35), 3), 1, "clip:-1.0:1.5"), id="pooled, odd rest alone"),
    ],
)
def test_tiles_in_every_mode(modes: str, spec: LayerSpec) -> None:
    values = [normal(*t.shape) for t in spec.inputs]
    tried: dict[tuple[str, bool], list[Point]] = {}
    for point in SPACES[spec.op].points(spec, cpu_features()):
        tried.setdefault((str(point["mode"]), "stretch" in point), []).append(point)
    assert set(modes.split()) == {mode for mode, _ in tried}
    for point in compile_ahead(spec, [p for mode in tried.values() for p in mode[:: max(len(mode) - 1, 1)]]):
        error, (output,) = run_and_compare(spec, point, values)
        assert error < 1e-2, point
        assert halo_is_zero(spec.outputs[0], output), point
