"""Vector functions against the double precision ones of Python's math, over all of their range."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from run_kernels import require_features
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen import vector_math
from veltair.compiler.codegen.activation import apply_activation
from veltair.compiler.codegen.memory import vector_load, vector_store
from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.codegen.vectors import LANES
from veltair.compiler.shared_library import compile_function

Vector = NDArray[np.float32]
TARGETS = {
    "avx2": {"kind": "llvm", "mcpu": "x86-64-v3"},
    "avx512": {"kind": "llvm", "mcpu": "x86-64-v4"},
}


@pytest.fixture(params=["avx2", "avx512"], scope="module")
def target(request: pytest.FixtureRequest) -> Any:
    require_features(frozenset({request.param}), "its functions")
    return TARGETS[request.param]


def run(target: Any, function: Callable[[Any], Any], x: Vector, width: int = LANES) -> Vector:
    """Apply a function of 16 floats to all of x; `width` is how many come out for each 16."""
    y = np.empty((len(x) // LANES, width), np.float32)

    def body(X: Any, Y: Any) -> None:
        with T.serial(0, len(x) // LANES) as i:
            value = function(vector_load(X, i * LANES))
            if width == 1:
                T.buffer_store(Y, value, [i, 0])
            else:
                vector_store(Y, value, i, 0)

    given, taken = tvm.runtime.tensor(x), tvm.runtime.tensor(y)
    compile_function(build_prim_func([x, y], body), "f", target)["f"](given, taken)
    return taken.numpy().reshape(-1)


def everywhere(low: float, high: float) -> Vector:
    """Evenly over the range, near zero by magnitude, and what is special."""
    small = np.float32(10.0) ** np.linspace(-37, 0, 16 * 1024).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 3.4e38, -3.4e38, 1e-42, *[0.5] * 6])
    return np.concatenate([np.linspace(low, high, 64 * 1024), small, -small, special]).astype(np.float32)


def units_off(found: Vector, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Error in units in the last place of the expected value, which for subnormals are those of the least normal."""
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(expected), 1.2e-38).astype(np.float32))
        same = (found == expected.astype(np.float32)) | (np.isnan(found) & np.isnan(expected))
        return np.where(same, 0.0, np.abs(found - expected) / unit)


def worst(target: Any, function: Callable[[Any], Any], exact: Callable[[float], float], x: Vector) -> float:
    expected = np.array([exact(float(v)) for v in x])
    off = units_off(run(target, function, x), expected)
    assert not np.isnan(off).any(), x[np.isnan(off)][:5]
    return float(off.max())


def log(value: float) -> float:
    if value == 0:
        return -math.inf
    return math.log(value) if not value < 0 else math.nan


def exp(value: float) -> float:
    return math.inf if value > 709 else math.exp(value)


def test_exp(target: Any) -> None:
    x = everywhere(-86.9, 88.7)
    assert worst(target, vector_math.exp, exp, x) <= 2
    beyond = np.linspace(-200, -87.1, 1024).astype(np.float32)
    assert not run(target, vector_math.exp, beyond).any()
    assert np.isposinf(run(target, vector_math.exp, -beyond - np.float32(-2.0))).all()


def test_log(target: Any) -> None:
    x = np.concatenate([everywhere(1e-6, 1e6), np.linspace(0.5, 2, 64 * 1024).astype(np.float32)])
    subnormal = np.linspace(1e-45, 1.1e-38, 1024).astype(np.float32)
    assert worst(target, vector_math.log, log, np.concatenate([x, subnormal])) <= 2


def test_erf(target: Any) -> None:
    assert worst(target, vector_math.erf, math.erf, everywhere(-6, 6)) <= 6


def test_tanh(target: Any) -> None:
    assert worst(target, vector_math.tanh, math.tanh, everywhere(-12, 12)) <= 5


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sine_and_cosine(target: Any, name: str) -> None:
    exact = getattr(math, name)
    angles = np.concatenate([everywhere(-1e5, 1e5), everywhere(-8, 8), np.geomspace(1, 3.4e38, 4096, dtype=np.float32)])
    found = run(target, getattr(vector_math, name), angles)
    expected = np.array([exact(float(v)) if np.isfinite(v) else math.nan for v in angles])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1.2e-7)


def test_sigmoid(target: Any) -> None:
    x = everywhere(-87, 87)
    assert worst(target, vector_math.sigmoid, lambda v: 1 / (1 + exp(-v)), x) <= 4


def test_lanes_are_combined(target: Any) -> None:
    x = np.random.default_rng(0).standard_normal(LANES * 64).astype(np.float32)
    rows = x.reshape(-1, LANES)
    np.testing.assert_allclose(run(target, vector_math.sum_lanes, x, 1), rows.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(run(target, vector_math.max_lanes, x, 1), rows.max(1))
    np.testing.assert_array_equal(run(target, vector_math.min_lanes, x, 1), rows.min(1))


def test_a_rough_sigmoid_is_good_for_bfloat16() -> None:
    require_features(frozenset({"avx512"}), "the rough sigmoid")
    x = everywhere(-86, 86)
    found = run(TARGETS["avx512"], vector_math.approximate_sigmoid, x).astype(np.float64)
    expected = 1 / (1 + np.exp(-np.clip(x.astype(np.float64), -87, 87)))
    np.testing.assert_allclose(found, expected, rtol=2e-4, equal_nan=True)


def test_a_rough_gelu_is_good_for_bfloat16() -> None:
    require_features(frozenset({"avx512"}), "the rough GELU")
    x = np.concatenate([np.linspace(-12, 12, 16 * 4000, dtype=np.float32), np.float32([1e4, -1e4] * 8)])
    found = run(TARGETS["avx512"], lambda v: apply_activation(v, "gelu", approximate=True), x)
    expected = [v * math.erfc(-v / 2**0.5) / 2 for v in x.tolist()]
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=3.2e-4)


@pytest.mark.parametrize("activation", ["relu", "clip:-1:2", "leaky:0.1", "elu:1", "hardsigmoid:0.2:0.5"])
def test_activations_keep_nan(target: Any, activation: str) -> None:
    x = np.resize(np.array([np.nan, np.inf, -np.inf, 0.5, -0.5], np.float32), LANES * 5)
    found = run(target, lambda value: apply_activation(value, activation), x)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
