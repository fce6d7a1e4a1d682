"""Inputs and expected outputs of the models that build_artifacts.py builds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

SPIN_LAYERS = 64
LONG_TURNS = 1_000_000_000  # about 0.15 s a layer: far longer than any test looks on


def spin_inputs(turns: int, seed: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    return {"turns": np.array([turns], np.int32), "seed": np.array([seed], np.int32)}


def spin_state(turns: int, seed: int) -> int:
    """What the spin model answers: that many turns a layer of a linear congruence, by squaring."""
    factor, addend, scale, shift, count = 1664525, 1013904223, 1, 0, SPIN_LAYERS * turns
    while count:
        if count % 2:
            scale, shift = scale * factor % 2**32, (shift * factor + addend) % 2**32
        factor, addend, count = factor * factor % 2**32, (addend * factor + addend) % 2**32, count // 2
    return int(np.int32(np.uint32((seed * scale + shift) % 2**32)))


def mlp_outputs(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the mlp model answers; the weights are those of build_artifacts.py."""
    generator = np.random.default_rng(7)
    for k, n in ((16, 32), (32, 32), (32, 8)):
        x = np.maximum(x @ generator.standard_normal((k, n), dtype=np.float32), 0)
    return x


def digests(names: Sequence[bytes], texts: Sequence[bytes], ids: Sequence[int]) -> list[list[int]]:
    """What the words model answers."""

    def polynomial(string: bytes) -> int:
        value = 0
        for byte in string:
            value = (value * 31 + byte) & 0xFFFFFFFF
        return value - (1 << 32) if value >= 1 << 31 else value

    return [
        [len(name), polynomial(name), len(text), polynomial(text), id_ & 0xFFFFFF]
        for name, text, id_ in zip(names, texts, ids, strict=True)
    ]
