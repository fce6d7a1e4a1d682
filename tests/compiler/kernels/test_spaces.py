"""Every design space gives what numpy and ONNX Runtime give, at any geometry and any of its points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_kernels import OLDER_CPUS, compile_ahead, halo_is_zero, require_features, run_and_compare, run_kernel, some_of

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Halo, LayerSpec
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage
from veltair.compiler.graph.parameters.recommendation import EmbeddingBagParameters, Reduction
from veltair.compiler.graph.parameters.vision import Conv2dParameters, ElementwiseParameters, Pool2dParameters, PoolKind
from veltair.machine.isa import cpu_features
from veltair.profiles.runtime.executor import aligned_copy

FP32, BF16 = ("float32", 16, 1e-4), ("uint16", 32, 1.5e-2)
needs_amx = pytest.mark.skipif("amx_bf16" not in cpu_features(), reason="this CPU has no AMX bfloat16 tiles")
PRECISIONS = [pytest.param(FP32, id="fp32"), pytest.param(BF16, id="bf16", marks=needs_amx)]
relaxed = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
random = np.random.default_rng(7)
ACTIVATIONS = [
    *("none", "relu", "clip:0.0:6.0", "leaky:0.1", "elu:1.0", "tanh", "gelu", "gelu-tanh"),
    *("sigmoid", "gated-sigmoid", "gated-hardsigmoid:0.2:0.5"),
]

halos = st.builds(Halo, *[st.integers(0, 2)] * 4)


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


@st.composite
def convolutions(draw, dtype: str, block: int, depthwise: bool = False) -> LayerSpec:
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (5, 5), (1, 7), (7, 7)]))
    strides = draw(st.sampled_from([(1, 1), (2, 2), (1, 2)]))
    dilations = draw(st.sampled_from([(1, 1), (2, 2)])) if max(kernel) <= 3 else (1, 1)
    channels = draw(st.sampled_from([3, 16, 24, 33, 70]))
    out = channels if depthwise else draw(st.sampled_from([5, 16, 40, 130]))
    pads = tuple(draw(st.integers(0, k // 2)) for k in kernel * 2)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    height = draw(st.integers(reach[0], 20))
    width = draw(st.integers(reach[1], 30))
    batch = draw(st.sampled_from([1, 1, 2]))
    oh = (height + pads[0] + pads[2] - reach[0]) // strides[0] + 1
    ow = (width + pads[1] + pads[3] - reach[1]) // strides[1] + 1
    folded = channels <= 4 and not depthwise
    right = pads[3] + (block // channels + 1 if folded else 0)
    x = (
        Activation("x", dtype, (batch, channels, height, width), channels if folded else block, Halo(*pads[:3], right))
        if draw(st.booleans()) or max(pads) or folded
        else Activation("x", dtype, (batch, channels, height, width), block)
    )
    y = Activation("y", dtype, (batch, out, oh, ow), block, draw(halos))
    inputs = (x, Activation("r", dtype, y.shape, block, draw(halos))) if draw(st.booleans()) else (x,)
    kind = "depthwise_conv2d" if depthwise else "conv2d_bf16" if dtype == "uint16" else "conv2d"
    fan = kernel[0] * kernel[1] * (1 if depthwise else channels)
    weight = normal(out, 1 if depthwise else channels, *kernel) / np.sqrt(fan)
    return LayerSpec(
        "conv",
        kind,
        inputs,
        (y,),
        {"weight": weight.astype(np.float32), "bias": normal(out)},
        0,
        parameters=Conv2dParameters(kernel, strides, dilations, pads, draw(st.sampled_from(ACTIVATIONS))),
    )


@pytest.mark.slow
@pytest.mark.parametrize("depthwise", [False, True], ids=["dense", "depthwise"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_convolution_equals_onnx_runtime(precision: tuple[str, int, float], depthwise: bool) -> None:
    dtype, block, tolerance = precision

    @relaxed
    @given(convolutions(dtype, block, depthwise), st.data())
    def check(spec: LayerSpec, data: st.DataObject) -> None:
        point = data.draw(st.sampled_from(SPACES[spec.op].points(spec, cpu_features())))
        values = [normal(*t.shape) for t in spec.inputs]
        error, (output,) = run_and_compare(spec, point, values)
        assert error < tolerance, (spec.workload, point)
        assert halo_is_zero(spec.outputs[0], output)

    check()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("kind", "pads", "count"), [("max", (1, 1, 1, 1), 0), ("avg", (1, 1, 0, 0), 0), ("avg", (1, 0, 1, 1), 1)]
)
def test_pool_equals_onnx_runtime(
    precision: tuple[str, int, float], kind: str, pads: tuple[int, ...], count: int
) -> None:
    dtype, block, tolerance = precision
    x = Activation("x", dtype, (2, 40, 13, 11), block, Halo(1, 0, 2, 1))
    shape = (2, 40, (13 + pads[0] + pads[2] - 3) // 2 + 1, (11 + pads[1] + pads[3] - 3) // 2 + 1)
    y = Activation("y", dtype, shape, block, Halo(1, 1, 1, 1))
    parameters = Pool2dParameters((3, 3), (2, 2), pads, PoolKind(kind), count)
    spec = LayerSpec("pool", "pool2d", (x,), (y,), {}, 0, parameters=parameters)
    for point in compile_ahead(spec, SPACES["pool2d"].points(spec, cpu_features())):
        error, (output,) = run_and_compare(spec, point, [normal(*x.shape) - 3])  # padding must not win a maximum
        assert error < tolerance
        assert halo_is_zero(y, output)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_elementwise_concat_pool_and_layouts(precision: tuple[str, int, float]) -> None:
    dtype, block, tolerance = precision
    x = Activation("x", dtype, (2, 40, 7, 9), block, Halo(1, 1, 1, 1))
    wide = Activation("w", dtype, (2, 2 * block, 7, 9), block)
    plain = Activation("p", "float32", (2, 40, 7, 9))
    weights = {"scale": normal(40), "shift": normal(40)}
    keeping_zeros = ElementwiseParameters(("add:1", "affine", "relu"))
    filling_zeros = ElementwiseParameters(("mul:1", "sigmoid"))
    specs = [
        LayerSpec("e", "elementwise", (x, x), (x,), weights, 0, parameters=keeping_zeros),
        LayerSpec("m", "elementwise", (x, x), (x,), {}, 0, parameters=filling_zeros),
        LayerSpec("c", "concat", (wide, x), (Activation("y", dtype, (2, 2 * block + 40, 7, 9), block, x.halo),), {}, 0),
        LayerSpec("g", "global_average_pool", (x,), (Activation("y", "float32", (2, 40, 1, 1)),), {}, 0),
        LayerSpec("b", "to_blocked", (plain,), (x,), {}, 0),
        LayerSpec("u", "to_plain", (x,), (plain,), {}, 0),
        LayerSpec("k", "copy", (plain,), (Activation("q", "float32", plain.shape),), {}, 0),
    ]
    for spec in specs:
        values = [normal(*t.shape) for t in spec.inputs]
        for point in compile_ahead(spec, SPACES[spec.op].points(spec, cpu_features())):
            error, (output,) = run_and_compare(spec, point, values)
            assert error < tolerance, spec.op
            if spec.outputs[0].block and spec.parameters != filling_zeros:
                assert halo_is_zero(spec.outputs[0], output), spec.op


@pytest.mark.sweep(3)
@pytest.mark.parametrize("batch", [1, 5, 12, 37])
@pytest.mark.parametrize(("depth", "width"), [(13, 64), (64, 1), (100, 250)])
@pytest.mark.parametrize("storage", ["fp32", "bf16"])
def test_matmul_at_any_batch(batch: int, depth: int, width: int, storage: str) -> None:
    x, y = Activation("x", "float32", (-1, depth)), Activation("y", "float32", (-1, width))
    weights = {"weight": normal(depth, width), "bias": normal(width)}
    spec = LayerSpec("m", "matmul", (x,), (y,), weights, 0, 64, MatmulParameters("relu", WeightStorage(storage)))
    points = SPACES["matmul"].points(spec, cpu_features())
    for point in compile_ahead(spec, points[:: max(1, len(points) // 4)]):
        error, _ = run_and_compare(spec, point, [normal(batch, depth)], batch)
        assert error < (1e-5 if storage == "fp32" else 1e-2)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("width", [8, 32, 40])
@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_bags_of_tables_of_different_length(width: int, reduce: str) -> None:
    rows = (100, 7, 31)
    ids = tuple(Activation(f"i{i}", "int64" if width == 32 else "int32", (-1, 9)) for i in range(3))
    outs = tuple(Activation(f"o{i}", "float32", (-1, width)) for i in range(3))
    weights = {f"table{i}": normal(r, width) for i, r in enumerate(rows)}
    parameters = EmbeddingBagParameters(reduce=Reduction(reduce))
    spec = LayerSpec("b", "embedding_bag", ids, outs, weights, 0, 16, parameters)
    values = [random.integers(0, r, (6, 9)).astype(ids[0].dtype) for r in rows]
    for point in compile_ahead(spec, some_of(SPACES["embedding_bag"].points(spec, cpu_features()))):
        assert run_and_compare(spec, point, values, 6)[0] < 1e-6


@pytest.mark.parametrize("bad", [-101, 100, 2**31, 2**40, -(2**63), 2**63 - 1])
def test_an_id_outside_the_table_reads_the_first_row(bad: int) -> None:
    """Ids are checked before they come here; a kernel still never reads outside."""
    spec = LayerSpec(
        "b",
        "embedding_bag",
        (Activation("i", "int64", (-1, 4)),),
        (Activation("o", "float32", (-1, 16)),),
        {"table0": normal(100, 16)},
        0,
        max_batch=2,
        parameters=EmbeddingBagParameters(reduce=Reduction.SUM),
    )
    ids = np.array([[bad, 3, bad, 5]])
    for point in compile_ahead(spec, SPACES["embedding_bag"].points(spec, cpu_features())):
        (found,) = run_kernel(spec, point, [aligned_copy(ids)])
        table = spec.weights["table0"]
        np.testing.assert_allclose(found[0], 2 * table[0] + table[3] + table[5], rtol=1e-5, atol=1e-6)


def test_every_space_offers_points_and_the_first_is_no_search_away() -> None:
    for op in ("conv2d", "conv2d_bf16"):
        dtype, block = ("uint16", 32) if op == "conv2d_bf16" else ("float32", 16)
        for c, hw in ((256, 14), (3, 224), (64, 1), (2048, 7)):
            x = Activation("x", dtype, (1, c, hw, hw), block)
            y = Activation("y", dtype, (1, 64, hw, hw), block)
            parameters = Conv2dParameters((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), "none")
            weights = {"weight": normal(64, c, 1, 1), "bias": normal(64)}
            spec = LayerSpec("c", op, (x,), (y,), weights, 0, parameters=parameters)
            points = SPACES[op].points(spec, cpu_features())
            assert points
            assert len({tuple(p.items()) for p in points}) == len(points)


@pytest.mark.parametrize("mcpu", sorted(OLDER_CPUS))
def test_code_for_lesser_instruction_sets(mcpu: str) -> None:
    require_features(OLDER_CPUS[mcpu], f"code for {mcpu}")
    x, y = (
        Activation("x", "float32", (1, 20, 9, 13), 16, Halo(1, 1, 1, 1)),
        Activation("y", "float32", (1, 40, 9, 13), 16),
    )
    parameters = Conv2dParameters((3, 3), (1, 1), (1, 1), (1, 1, 1, 1), "relu")
    weights = {"weight": normal(40, 20, 3, 3), "bias": normal(40)}
    rows, out = Activation("a", "float32", (9, 30)), Activation("b", "float32", (9, 50))
    dense_weights, matmul = {"weight": normal(30, 50), "bias": normal(50)}, MatmulParameters("none", WeightStorage.FP32)
    dense = LayerSpec("d", "matmul", (rows,), (out,), dense_weights, 0, parameters=matmul)
    convolution = LayerSpec("c", "conv2d", (x,), (y,), weights, 0, parameters=parameters)
    for spec in (convolution, dense):
        for point in compile_ahead(spec, SPACES[spec.op].points(spec, OLDER_CPUS[mcpu])[:4], mcpu):
            assert run_and_compare(spec, point, [normal(*t.shape) for t in spec.inputs], mcpu=mcpu)[0] < 1e-5
