"""What all kernels do to weights before they lay them out in the order of their use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.codegen.bf16 import array_to_bf16


def pad_axis(array: NDArray[Any], axis: int, multiple: int) -> NDArray[Any]:
    """The array with zeros behind the end of an axis, up to a multiple of its length.

    >>> pad_axis(np.ones((2, 3)), 1, 4).tolist()
    [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    """
    missing = -array.shape[axis] % multiple
    widths = [(0, missing if i == axis else 0) for i in range(array.ndim)]
    return np.pad(array, widths) if missing else array


def pack_bf16_pairs(weight: NDArray[np.float32], axis: int) -> NDArray[np.int32]:
    """Neighbours along an axis rounded to bfloat16, two in one integer: the first in its lower half, and zero behind
    the last of an odd number.

    >>> [hex(pair) for pair in pack_bf16_pairs(np.array([1, 2, 3], np.float32), 0)]
    ['0x40003f80', '0x4040']
    """
    bits = np.moveaxis(array_to_bf16(pad_axis(weight, axis, 2)), axis, 0).astype(np.uint32)
    return np.ascontiguousarray(np.moveaxis(bits[::2] | bits[1::2] << 16, 0, axis)).view(np.int32)
