"""What is known of the numbers of a product before it runs, which spares its epilogue operations."""

from __future__ import annotations

import numpy as np

from veltair.compiler.kernels.int8.epilogue import activation_bounds
from veltair.compiler.kernels.int8.starting_sums import bias_steps
from veltair.compiler.patterns.quantised.product_match import ProductMatch
from veltair.compiler.patterns.quantised.quantum import Quantum

MOST_STEPS = 1 << 22  # of a bias: sums have room for it, and a float tells such steps apart
EQUAL = 1e-6  # steps of a bias and the nearest whole ones, relative: the scales of both are rounded to float32
MOST_RESULT = 1 << 30  # steps of the output: int32 has room for them
INTEGERS = 255  # between two values of 8 bits at most


def has_whole_bias(found: ProductMatch) -> bool:
    """Whether the bias is a whole number of the steps of its column's sums, as quantisation tools write it."""
    if found.dynamic is not None:
        return False
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = bias_steps(found.bias, found.scale)
        near = np.abs(steps - np.rint(steps)) <= EQUAL * np.maximum(np.abs(steps), 1)
        return bool(np.all(near & (np.abs(steps) < MOST_STEPS)))


def saturates(found: ProductMatch) -> bool:
    """Whether rounding to the output's type, which saturates, does all that bounds of the result do."""
    if found.rounded is None or found.dynamic is not None:
        return False
    single = found.between is None and found.added is None and found.residual is None
    behind = [found.last, found.first] if single else [found.last]
    if activation_bounds(found.first) is None or not all(_covers(each, found.rounded) for each in behind):
        return False
    return _most(found) / found.rounded.scale < MOST_RESULT


def _covers(activation: str, rounded: Quantum) -> bool:
    """Whether an activation lets through all values that the type can stand for."""
    bounds, info = activation_bounds(activation), np.iinfo(rounded.dtype)
    if bounds is None:
        return False
    low, high = ((end - rounded.zero) * rounded.scale for end in (info.min, info.max))
    return bounds[0] <= low and bounds[1] >= high


def _most(found: ProductMatch) -> float:
    """The largest magnitude that a result can have in front of its rounding."""
    if found.between is not None:
        most = INTEGERS * found.between.scale
    else:
        weight = found.weight.astype(np.float64) - (0 if found.weight_zero is None else found.weight_zero)
        sums = INTEGERS * np.abs(weight).sum(0) * np.abs(found.scale)
        most = float((sums + np.abs(found.bias)).max(initial=0))
    if found.added is not None:
        most += float(np.abs(found.added).max(initial=0))
    return most + (INTEGERS * found.residual.quantum.scale if found.residual is not None else 0)
