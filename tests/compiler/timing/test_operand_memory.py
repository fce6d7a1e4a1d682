"""Operands of one request after the other share memory: they are zeros, aligned, and apart from each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from veltair.compiler.timing import operand_memory
from veltair.compiler.timing.operand_memory import OperandMemory
from veltair.profiles.artifact.manifest import ALIGNMENT, SLACK_BYTES
from veltair.profiles.runtime.executor import aligned_zeros

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
REQUESTS = st.lists(st.lists(st.tuples(SHAPES, st.sampled_from(["uint8", "float32", "int64"])), max_size=4), max_size=6)


@given(REQUESTS, st.sampled_from([0, 3 * SLACK_BYTES, 1 << 20]))
def test_arrays_of_a_request_are_zeros_apart_from_each_other(
    requests: list[list[tuple[Sequence[int], str]]], most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operand_memory, "MOST_BYTES", most)
        memory = OperandMemory(aligned_zeros)
        for wanted in requests:
            memory.begin()
            arrays = [memory.zeros(shape, dtype) for shape, dtype in wanted]
            for number, (array, (shape, dtype)) in enumerate(zip(arrays, wanted, strict=True), 1):
                assert (array.shape, array.dtype) == (tuple(shape), dtype)
                assert array.size == 0 or array.ctypes.data % ALIGNMENT == 0
                assert not array.any()
                array[...] = number
            for number, array in enumerate(arrays, 1):
                assert (array == number).all()


def test_a_second_request_of_the_size_takes_no_new_memory() -> None:
    made: list[int] = []

    def allocate(shape: Sequence[int], dtype: str) -> NDArray[np.uint8]:
        made.append(int(np.prod(shape)))
        return aligned_zeros(shape, dtype)

    memory = OperandMemory(allocate)
    for _ in range(4):
        memory.begin()
        memory.zeros((100, 100), "uint8")
    assert made == [10_000, -(-(10_000 + SLACK_BYTES) // ALIGNMENT) * ALIGNMENT]
