"""Strings in Arrow's form: in and out, joined, and refused where their offsets lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.errors import RequestError
from veltair.profiles.artifact.strings import Strings

TEXTS = st.lists(st.binary(max_size=20), max_size=12)


@given(TEXTS)
def test_bytes_come_out_as_they_went_in(values: list[bytes]) -> None:
    strings = Strings.from_values(values).checked("s", len(values))
    assert strings.tolist() == values and len(strings) == len(values) and strings.size == sum(map(len, values))


@given(st.lists(TEXTS, max_size=5))
def test_joined_they_stand_one_after_the_other(parts: list[list[bytes]]) -> None:
    joined = Strings.concat([Strings.from_values(part) for part in parts])
    assert joined.tolist() == [value for part in parts for value in part]


def test_text_is_utf8() -> None:
    assert Strings.from_values(["Größe", b"\xff\0"]).tolist() == ["Größe".encode(), b"\xff\0"]


@pytest.mark.parametrize("other", [3, 2.5, None, ["a"]])
def test_what_is_no_text_is_refused(other: object) -> None:
    with pytest.raises(TypeError):
        Strings.from_values([b"a", other])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ([0, 2, 1, 3], "offsets fall at row 1"),
        ([0, 1, 2, 5], "row 2 ends at byte 5 of 4"),
        ([1, 1, 2, 3], "offsets start at 1"),
        ([0, -1, 2, 3], "offsets fall at row 0"),
        ([0, 1, 2], "expected uint8 data and 4 int32 offsets"),
        ([0, 9, 2, 3], "offsets fall at row 1"),
    ],
)
def test_offsets_that_lie_name_input_and_row(offsets: list[int], says: str) -> None:
    with pytest.raises(RequestError, match=f"input 'history': {says}"):
        Strings(np.zeros(4, np.uint8), np.array(offsets, np.int32)).checked("history", 3)
