"""Dense layers, attention, layer norm and embeddings give what numpy gives, at odd sizes and on every unit."""

from __future__ import annotations

import numpy as np
import pytest
from run_kernels import OLDER_CPUS, compile_ahead, run_and_compare, run_kernel

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.products import MatmulParameters, WeightStorage
from veltair.compiler.graph.parameters.sequence import AttentionParameters, LayerNormParameters
from veltair.machine.isa import cpu_features

random = np.random.default_rng(11)
HERE = cpu_features()
needs_amx = pytest.mark.skipif("amx_bf16" not in HERE, reason="this CPU has no AMX bfloat16 tiles")
needs_bf16 = pytest.mark.skipif("avx512_bf16" not in HERE, reason="this CPU does not round to bfloat16")
UNITS = [  # type, CPU that the code is for
    pytest.param("float32", "", id="fp32"),
    pytest.param("float32", "haswell", id="avx2"),
    pytest.param("uint16", "", id="amx", marks=needs_amx),
    pytest.param("uint16", "cooperlake", id="avx512-bf16", marks=needs_bf16),
]
TOLERANCE = {"float32": 2e-6, "uint16": 1e-2}


def normal(*shape: int) -> np.ndarray:
    return random.standard_normal(shape).astype(np.float32)


def at(shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    return tuple(-d * batch if d < 0 else d for d in shape)


def check(
    spec: LayerSpec,
    mcpu: str,
    batch: int = 1,
    values: list[np.ndarray] | None = None,
    ends: bool = True,
    tolerance: float = 0,
) -> None:
    """Of a space the first and the last point, or the first alone."""
    points = SPACES[spec.op].points(spec, OLDER_CPUS.get(mcpu, HERE))
    values = values or [normal(*at(tensor.shape, batch)) for tensor in spec.inputs]
    for point in compile_ahead(spec, (points[0], points[-1]) if ends else points[:1], mcpu):
        error, _ = run_and_compare(spec, point, values, batch, mcpu)
        assert error < max(tolerance, TOLERANCE[spec.outputs[0].dtype]), (spec.workload, point)


@pytest.mark.parametrize(
    ("rows", "depth", "width", "activation", "residual"),
    [
        (1, 33, 5, "none", ""),
        (3, 64, 16, "tanh", "float32"),
        (385, 70, 50, "gelu", ""),
        (48, 320, 96, "relu", "same"),
        (70, 289, 64, "gelu", ""),
        (-5, 40, 33, "none", "same"),
    ],
)
@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
def test_dense_layer(dtype: str, mcpu: str, rows: int, depth: int, width: int, activation: str, residual: str) -> None:
    inputs = [Activation("x", dtype, (rows, depth))]
    if residual:
        inputs.append(Activation("r", dtype if residual == "same" else residual, (rows, width)))
    weights = {"weight": normal(depth, width) / np.float32(depth**0.5), "bias": normal(width)}
    kind = "matmul" if dtype == "float32" else "matmul_bf16"
    parameters = MatmulParameters(activation, WeightStorage.FP32 if kind == "matmul" else None)
    for out in {dtype, "float32"}:
        y = Activation("y", out, (rows, width))
        check(LayerSpec("dense", kind, tuple(inputs), (y,), weights, 0, 3, parameters), mcpu, batch=3)


@needs_amx
def test_rows_that_are_fetched_ahead() -> None:
    """More than L2 holds of a sweep, whose next one begins behind the last row."""
    weights = {"weight": normal(3100, 40) / np.float32(55), "bias": normal(40)}
    x, y = Activation("x", "uint16", (-1, 3100)), Activation("y", "float32", (-1, 40))
    spec = LayerSpec("dense", "matmul_bf16", (x,), (y,), weights, 0, 530, MatmulParameters("relu"))
    for batch in (530, 3):
        check(spec, "", batch)


def attention(
    dtype: str, heads: int, width: int, tokens: int, keys: int, mask: tuple[int, ...] = (), images: int = 1
) -> LayerSpec:
    total = heads * width
    if tokens == keys:
        inputs, places = [Activation("qkv", dtype, (images * tokens, 3 * total))], ((0, 0), (0, total), (0, 2 * total))
    else:
        sides = zip("qkv", (tokens, keys, keys), strict=True)
        inputs = [Activation(name, dtype, (images * count, total)) for name, count in sides]
        places = ((0, 0), (1, 0), (2, 0))
    if mask:
        inputs.append(Activation("mask", "float32", mask))
    parameters = AttentionParameters(heads, width, tokens, keys, width**-0.5, places, bool(mask))
    y = Activation("y", dtype, (images * tokens, total))
    return LayerSpec("attention", "attention", tuple(inputs), (y,), {}, 0, 3, parameters)


@pytest.mark.parametrize(
    "spec",
    [
        {"heads": 1, "width": 32, "tokens": 1, "keys": 1},
        {"heads": 3, "width": 64, "tokens": 40, "keys": 40, "mask": (-1, 1, 1, 40), "images": -1},
        {"heads": 2, "width": 80, "tokens": 17, "keys": 65, "mask": (1, 2, 17, 65)},
        {"heads": 12, "width": 48, "tokens": 35, "keys": 16, "images": 2},
        {"heads": 1, "width": 64, "tokens": 384, "keys": 384, "mask": (1, 1, 1, 384)},
    ],
    ids=lambda spec: "x".join(str(spec[k]) for k in ("heads", "width", "tokens", "keys")),
)
@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
def test_attention(dtype: str, mcpu: str, spec: dict[str, int]) -> None:
    check(attention(dtype, **spec), mcpu, batch=3)


@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
@pytest.mark.parametrize("hidden", [-10000.0, float("-inf")])
def test_masked_keys_weigh_nothing(dtype: str, mcpu: str, hidden: float) -> None:
    spec = attention(dtype, 1, 32, 20, 20, mask=(1, 1, 20, 20))
    mask = np.where(np.arange(20) < 13, 0, hidden).astype(np.float32) + np.zeros((1, 1, 20, 20), np.float32)
    check(spec, mcpu, values=[normal(*spec.inputs[0].shape) * 4, mask], ends=False, tolerance=1e-5)


@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
def test_a_row_of_hidden_keys_is_a_number(dtype: str, mcpu: str) -> None:
    """Where all scores of a row are lowered alike, they count as they are, as in ONNX Runtime."""
    spec = attention(dtype, 1, 32, 20, 20, mask=(1, 1, 1, 20))
    values = [normal(*spec.inputs[0].shape), np.full((1, 1, 1, 20), -10000, np.float32)]
    check(spec, mcpu, values=values, ends=False, tolerance=1e-3)  # at 10000, floats are a thousandth apart


@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (7, 33), (-3, 768)])
def test_layer_norm(dtype: str, mcpu: str, rows: int, width: int) -> None:
    inputs = (Activation("x", "float32", (rows, width)),)
    weights = {"scale": normal(width), "shift": normal(width)}
    y = Activation("y", dtype, (rows, width))
    spec = LayerSpec("norm", "layer_norm", inputs, (y,), weights, 0, 3, LayerNormParameters(1e-12))
    check(spec, mcpu, batch=3)


@pytest.mark.parametrize(("dtype", "mcpu"), UNITS)
def test_embedding(dtype: str, mcpu: str) -> None:
    ids = tuple(Activation(name, "int64", (-1, 9)) for name in ("words", "kinds"))
    weights = {"table0": normal(50, 40), "table1": normal(2, 40), "positions": normal(9, 40)}
    weights |= {"scale": normal(40), "shift": normal(40)}
    y = Activation("y", dtype, (-9, 40))
    spec = LayerSpec("embedding", "embedding", ids, (y,), weights, 0, 3, LayerNormParameters(1e-5))
    values = [random.integers(0, 50, (3, 9)), random.integers(0, 2, (3, 9))]
    check(spec, mcpu, batch=3, values=values)


def test_an_id_that_no_row_has_reads_row_0() -> None:
    ids = (Activation("words", "int64", (1, 3)),)
    weights = {"table0": normal(5, 16), "positions": np.zeros((3, 16), np.float32)}
    weights |= {"scale": np.ones(16, np.float32), "shift": np.zeros(16, np.float32)}
    y = Activation("y", "float32", (3, 16))
    spec = LayerSpec("embedding", "embedding", ids, (y,), weights, 0, parameters=LayerNormParameters(1e-5))
    point = SPACES["embedding"].points(spec, HERE)[0]
    (wild,) = run_kernel(spec, point, [np.array([[2**40, -1, 5]])])
    (first,) = run_kernel(spec, point, [np.zeros((1, 3), np.int64)])
    np.testing.assert_array_equal(wild, first)


@pytest.mark.parametrize("width", [32, 40, 7])
@pytest.mark.parametrize("source", ["float32", "uint16"])
@needs_bf16
def test_cast(source: str, width: int) -> None:
    other = {"float32": "uint16", "uint16": "float32"}[source]
    x, y = (Activation(name, dtype, (-2, 3, width)) for name, dtype in (("x", source), ("y", other)))
    spec = LayerSpec("cast", "cast", (x,), (y,), {}, 0, max_batch=3)
    error, _ = run_and_compare(spec, {}, [normal(6, 3, width)], batch=3)
    assert error == 0
