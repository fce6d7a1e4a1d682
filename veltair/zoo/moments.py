"""What a tensor is expected to hold, in mean and variance per channel, and how an operator changes it.

Random weights alone make a net whose activations explode, die, or hardly depend on the input. The graphs of the zoo
carry these moments, for Gaussian channels of independent pixels, from node to node, and scale by them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# Standard normal distribution: points of equal mass for kinked functions, of Gauss and Hermite's rule for smooth ones.
_NODES, _MASSES = np.polynomial.hermite_e.hermegauss(64)
_GRID = np.linspace(-8, 8, 1601)


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph: its name and what each channel is expected to hold over images and pixels."""

    name: str
    mean: Floats  # (channels,)
    var: Floats  # (channels,)

    @property
    def channels(self) -> int:
        return len(self.mean)

    @property
    def square(self) -> Floats:
        """Second moment (channels,)."""
        return self.mean**2 + self.var


def rectified(x: Value, name: str) -> Value:
    """max(0, x) of Gaussian channels."""
    sigma = np.sqrt(x.var)
    ratio = x.mean / sigma
    below = _below(ratio)
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    mean = x.mean * below + sigma * density
    square = (x.mean**2 + x.var) * below + x.mean * sigma * density
    return Value(name, mean, square - mean**2)


def leaky(x: Value, name: str, slope: float) -> Value:
    """x where it is positive, slope * x elsewhere, of Gaussian channels."""
    positive = rectified(x, name)
    mean = slope * x.mean + (1 - slope) * positive.mean
    square = slope**2 * x.square + (1 - slope**2) * positive.square
    return Value(name, mean, square - mean**2)


def swish(x: Value, name: str) -> Value:
    """x * sigmoid(x) of Gaussian channels."""
    points = x.mean[:, None] + np.sqrt(x.var)[:, None] * _NODES
    return _weighted(points / (1 + np.exp(-points)), _MASSES, name)


def squashed(x: Value, name: str) -> Value:
    """sigmoid(x) of Gaussian channels."""
    points = x.mean[:, None] + np.sqrt(x.var)[:, None] * _NODES
    return _weighted(1 / (1 + np.exp(-points)), _MASSES, name)


def product(x: Value, y: Value, name: str) -> Value:
    """x * y of independent values."""
    mean = x.mean * y.mean
    return Value(name, mean, x.square * y.square - mean**2)


def joined(values: Sequence[Value], name: str) -> Value:
    return Value(name, np.concatenate([v.mean for v in values]), np.concatenate([v.var for v in values]))


def largest(x: Value, name: str, count: int) -> Value:
    """The largest of `count` independent draws from non-negative channels.

    Each channel is taken as the rectified Gaussian of the same two moments: a ratio of mean to deviation belongs to
    one of mean to deviation before the cut; far from the cut it is the Gaussian itself.
    """
    before = np.linspace(-3, 12, 601)
    after = rectified(Value("", before, np.ones_like(before)), "")
    ratio = np.interp(x.mean / np.sqrt(x.var), after.mean / np.sqrt(after.var), before)
    sigma = np.sqrt(x.var / np.interp(ratio, before, after.var))
    masses = np.diff(_below(_GRID) ** count)
    middle = (_GRID[1:] + _GRID[:-1]) / 2
    return _weighted(sigma[:, None] * np.maximum(0, ratio[:, None] + middle), masses, name)


def _weighted(points: Floats, masses: Floats, name: str) -> Value:
    masses = masses / masses.sum()
    mean = points @ masses
    return Value(name, mean, points**2 @ masses - mean**2)


def _below(x: Floats) -> Floats:
    """Standard normal distribution function."""
    return np.array([0.5 * math.erfc(-float(each) / math.sqrt(2)) for each in x])
