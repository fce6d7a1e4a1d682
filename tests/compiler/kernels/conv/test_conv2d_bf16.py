"""Convolutions in dot products of bfloat16 against ONNX Runtime."""

from __future__ import annotations

import re

import pytest
from conv_layers import bare, normal, pooled, tiles
from run_kernels import OLDER_CPUS, compile_ahead, halo_is_zero, require_features, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import ISAS


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(bare(tiles((40, 70), (7, 9), 1, residual=True), "relu"), id="pointwise"),
        pytest.param(tiles((70, 40), (9, 13), 3, residual=True, batch=2), id="odd blocks, half a block of outputs"),
        pytest.param(tiles((33, 64), (14, 14), 3, stride=2), id="stride"),
        pytest.param(tiles((3, 40), (23, 37), 7, stride=2), id="image"),
        pytest.param(tiles((1, 16), (9, 11), 3, dilation=2, pads=(2, 2, 2, 2)), id="dilated image of one channel"),
        pytest.param(tiles((24, 24), (10, 10), 5), id="5x5"),
        pytest.param(tiles((160, 40), (1, 1), 1, batch=3), id="one output"),
        pytest.param(pooled(tiles((3, 16), (37, 70), 3), 1, "leaky:0.1"), id="pooled image"),
        pytest.param(pooled(tiles((40, 70), (9, 33), 3, batch=2), 0, "relu"), id="pooled, odd rest left out"),
    ],
)
def test_dot_products_agree_with_onnx_runtime(spec: LayerSpec) -> None:
    require_features(OLDER_CPUS["cooperlake"], "dot products of bfloat16")
    values = [normal(*t.shape) for t in spec.inputs]
    points = SPACES[spec.op].points(spec, OLDER_CPUS["cooperlake"])
    for point in compile_ahead(spec, (points[0], *points[1::5]), "cooperlake"):
        error, (output,) = run_and_compare(spec, point, values, mcpu="cooperlake")
        assert error < 1e-2, point
        assert halo_is_zero(spec.outputs[0], output), point


def test_code_without_tiles_has_none() -> None:
    """Dot products by the instruction, no sum of them in memory, and nothing that asks for AMX."""
    spec, lesser = tiles((64, 64), (14, 14), 3), ISAS["avx512_bf16"]
    space = SPACES[spec.op]
    kernel = space.build(spec, space.points(spec, lesser)[0], lesser)
    target = {"kind": "llvm", "mcpu": "x86-64-v4", "mattr": ["+avx512bf16"]}
    code = compile_function(kernel.function, "main", target).mod.inspect_source("asm")
    products = re.findall(r"vdpbf16ps\s.*", code)
    assert len(products) >= 16
    assert not [line for line in products if "%rsp" in line or "%rbp" in line]
    assert not re.search(r"\b(tile\w+|ldtilecfg|tdp\w+)\b|veltair_dot", code)
