"""Expected mean and variance of each channel of a tensor, and how operators change them.

Purely random weights make a network whose activations explode, vanish, or hardly depend on the input. The graphs of the
zoo propagate these moments from node to node, for Gaussian channels of independent pixels, and scale weights by them.
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
class TensorMoments:
    """A tensor of a graph with the expected mean and variance of each channel over images and pixels.

    >>> TensorMoments("x", np.zeros(3), np.ones(3)).channels
    3
    """

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


def relu_moments(x: TensorMoments, name: str) -> TensorMoments:
    """Moments of max(0, x) for Gaussian channels."""
    sigma = np.sqrt(x.var)
    ratio = x.mean / sigma
    below = _below(ratio)
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    mean = x.mean * below + sigma * density
    square = (x.mean**2 + x.var) * below + x.mean * sigma * density
    return TensorMoments(name, mean, square - mean**2)


def leaky_relu_moments(x: TensorMoments, name: str, slope: float) -> TensorMoments:
    """Moments of x where it is positive and slope * x elsewhere, for Gaussian channels."""
    positive = relu_moments(x, name)
    mean = slope * x.mean + (1 - slope) * positive.mean
    square = slope**2 * x.square + (1 - slope**2) * positive.square
    return TensorMoments(name, mean, square - mean**2)


def silu_moments(x: TensorMoments, name: str) -> TensorMoments:
    """Moments of x * sigmoid(x) for Gaussian channels."""
    points = x.mean[:, None] + np.sqrt(x.var)[:, None] * _NODES
    return _weighted(points / (1 + np.exp(-points)), _MASSES, name)


def sigmoid_moments(x: TensorMoments, name: str) -> TensorMoments:
    """Moments of sigmoid(x) for Gaussian channels."""
    points = x.mean[:, None] + np.sqrt(x.var)[:, None] * _NODES
    return _weighted(1 / (1 + np.exp(-points)), _MASSES, name)


def product_moments(x: TensorMoments, y: TensorMoments, name: str) -> TensorMoments:
    """Moments of x * y for independent values."""
    mean = x.mean * y.mean
    return TensorMoments(name, mean, x.square * y.square - mean**2)


def concat_moments(values: Sequence[TensorMoments], name: str) -> TensorMoments:
    return TensorMoments(name, np.concatenate([v.mean for v in values]), np.concatenate([v.var for v in values]))


def max_moments(x: TensorMoments, name: str, count: int) -> TensorMoments:
    """Moments of the largest of `count` independent draws from non-negative channels.

    Each channel is taken as the rectified Gaussian of the same two moments: a ratio of mean to deviation belongs to
    one of mean to deviation before the cut; far from the cut it is the Gaussian itself.
    """
    before = np.linspace(-3, 12, 601)
    after = relu_moments(TensorMoments("", before, np.ones_like(before)), "")
    ratio = np.interp(x.mean / np.sqrt(x.var), after.mean / np.sqrt(after.var), before)
    sigma = np.sqrt(x.var / np.interp(ratio, before, after.var))
    masses = np.diff(_below(_GRID) ** count)
    middle = (_GRID[1:] + _GRID[:-1]) / 2
    return _weighted(sigma[:, None] * np.maximum(0, ratio[:, None] + middle), masses, name)


def _weighted(points: Floats, masses: Floats, name: str) -> TensorMoments:
    masses = masses / masses.sum()
    mean = points @ masses
    return TensorMoments(name, mean, points**2 @ masses - mean**2)


def _below(x: Floats) -> Floats:
    """Standard normal distribution function."""
    return np.array([0.5 * math.erfc(-float(each) / math.sqrt(2)) for each in x])
