"""Checks a code version at a great batch without a reference of it: samples of a small batch, each several times and in
no order, give the same bits as in the small batch, where the version was found right.

A layer need not keep its samples apart, nor a version compute the same bits at each place. Then the answer is no, and
the reference decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.timing.measure import Meter, result_operands
from veltair.compiler.timing.measuring_messages import FileTensor, InlineTensor, Operand, RepeatedTensor


def may_repeat(spec: LayerSpec) -> bool:
    """Whether few samples show all that a version does: where inputs are ids or lengths, their values choose."""
    floats = all(tensor.dtype in ("float32", "float16", "uint16") for tensor in spec.inputs)
    return floats and all(min(tensor.physical[1:], default=0) >= 0 for tensor in (*spec.inputs, *spec.outputs))


def repeats(
    meter: Meter,
    library: Path,
    symbol: str,
    weights: Sequence[Operand],
    spec: LayerSpec,
    inputs: Sequence[NDArray[Any]],
    samples: int,
    batch: int,
    cores: int,
) -> bool:
    """Whether a version gives the bits of `inputs`, a batch of `samples`, for each of them in a batch of `batch`.

    Raises CandidateError when the version crashes.
    """
    rows = tuple(np.random.default_rng(0).integers(samples, size=batch).tolist())
    given = meter.hand_over(inputs)
    few = meter.call(library, symbol, [*given, *weights, *result_operands(spec, samples)], cores)
    few = [np.array(array) for array in few]  # they last until the next call
    repeated = [_repeated(tensor, operand, rows) for tensor, operand in zip(spec.inputs, given, strict=True)]
    many = meter.call(library, symbol, [*repeated, *weights, *result_operands(spec, batch)], cores)
    outputs = zip(spec.outputs, few, many, strict=True)
    return all(_is_repeated(tensor, one, other, rows) for tensor, one, other in outputs)


def _repeated(tensor: Activation, operand: Operand, rows: tuple[int, ...]) -> Operand:
    if not _has_batch(tensor) or not isinstance(operand, InlineTensor | FileTensor):
        return operand
    return RepeatedTensor(operand, -tensor.physical[0], rows)


def _has_batch(tensor: Activation) -> bool:
    return bool(tensor.physical) and tensor.physical[0] < 0


def _is_repeated(tensor: Activation, few: NDArray[Any], many: NDArray[Any], rows: Sequence[int]) -> bool:
    one, other = _words(few), _words(many)
    if not _has_batch(tensor) or not one.size:
        return np.array_equal(one, other)
    size = other.size // len(rows)
    return all(np.array_equal(one[row * size :][:size], other[at * size :][:size]) for at, row in enumerate(rows))


def _words(array: NDArray[Any]) -> NDArray[Any]:
    """The bits as integers, so that NaN equals itself."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}")
