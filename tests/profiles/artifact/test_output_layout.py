"""Outputs whose extents values decide, read from the tensors that kernels write, whatever these hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from example_manifest import make_manifest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec.structs import replace
from numpy.typing import NDArray

from veltair.errors import RequestError
from veltair.profiles.artifact.consistency import find_inconsistency
from veltair.profiles.artifact.manifest import Port
from veltair.profiles.artifact.output_layout import read_outputs, write_tensors

ROOM = 12
MANIFEST = make_manifest(
    model="detector",
    max_batch=4,
    batches=(1, 4),
    inputs=(Port("x", "float32", (-1, 3)),),
    outputs=(Port("boxes", "float32", (0, 4), room=ROOM), Port("score", "float32", (-1,))),
)


@given(st.integers(1, 4), st.data())
def test_what_is_written_is_read(batch: int, data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, ROOM * batch // 4))
    boxes: NDArray[Any] = data.draw(arrays.arrays(np.float32, (rows, 4), elements=st.floats(width=32, allow_nan=False)))
    score = np.arange(batch, dtype=np.float32)
    tensors = write_tensors(MANIFEST, [boxes, score], batch)
    assert [tensor.shape for tensor in tensors] == [port.at(batch) for port in MANIFEST.output_tensors]
    found = read_outputs(MANIFEST, tensors)
    assert list(found) == ["boxes", "score"]
    np.testing.assert_array_equal(found["boxes"], boxes)
    assert found["boxes"].shape == boxes.shape
    np.testing.assert_array_equal(found["score"], score)


@pytest.mark.parametrize("shape", [(3, 4), (5,), ()])
def test_fewer_dimensions_than_the_most(shape: tuple[int, ...]) -> None:
    boxes = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    tensors = write_tensors(MANIFEST, [boxes, np.zeros(1, np.float32)], 1)
    assert tensors[1].shape == (2,)
    found = read_outputs(MANIFEST, tensors)["boxes"]
    assert found.shape == shape
    np.testing.assert_array_equal(found, boxes)


@pytest.mark.parametrize("extents", [(4, 4), (-1, 4), (-3, -4), (2**40, 2**40), (-(2**63), 2)])
def test_extents_that_lie_outside_of_the_room(extents: tuple[int, int]) -> None:
    tensors = [np.zeros((1, ROOM), np.float32), np.array(extents, np.int64), np.zeros(1, np.float32)]
    with pytest.raises(RequestError, match=r"detector: output 'boxes' has .* for at most 12"):
        read_outputs(MANIFEST, tensors)


@pytest.mark.parametrize(("shape", "room"), [((0, 4), 0), ((1, 4), 9), ((0, 4), -1)])
def test_room_goes_with_an_extent_that_varies(shape: tuple[int, ...], room: int) -> None:
    assert find_inconsistency(MANIFEST, 0) == ""
    changed = replace(MANIFEST, outputs=(Port("boxes", "float32", shape, room=room),))
    assert "output boxes" in find_inconsistency(changed, 0)
