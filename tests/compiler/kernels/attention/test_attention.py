"""Attention gives what numpy gives, at odd sizes, masked, and on every unit."""

from __future__ import annotations

import numpy as np
import pytest
from units_check import UNITS, check, normal

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import AttentionParameters


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


@pytest.mark.sweep(3)
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
@pytest.mark.parametrize("heads_first", [(True, True, False), (False, True, True)], ids=["rotary", "first"])
def test_grouped_heads(dtype: str, mcpu: str, heads_first: tuple[bool, bool, bool]) -> None:
    """Six heads of Q share two of K and V, which lie side by side in rows or one after the other."""
    heads, group, width, tokens, keys = 6, 3, 48, 19, 35
    inputs = []
    for name, count, of, first in zip("qkv", (tokens, keys, keys), (heads, 2, 2), heads_first, strict=True):
        shape = (-count * of, width) if first else (-count, of * width)
        inputs.append(Activation(name, dtype, shape))
    places = ((0, 0), (1, 0), (2, 0))
    parameters = AttentionParameters(heads, width, tokens, keys, 0.2, places, False, group, heads_first)
    y = Activation("y", dtype, (-tokens, heads * width))
    check(LayerSpec("attention", "attention", tuple(inputs), (y,), {}, 0, 3, parameters), mcpu, batch=3)


def test_a_row_without_any_key_is_zeros() -> None:
    """In fp32, in the kernel as in the reference: a batch is filled up with samples whose mask hides every key."""
    spec = attention("float32", 1, 32, 20, 20, mask=(1, 1, 20, 20))
    mask = np.zeros((1, 1, 20, 20), np.float32)
    mask[0, 0, 7] = -np.inf
    check(spec, "", values=[normal(*spec.inputs[0].shape), mask], ends=False, tolerance=1e-5)
