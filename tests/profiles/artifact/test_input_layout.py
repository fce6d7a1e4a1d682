"""The layout of inputs: values that are put in are found there, for one query and for several merged into one."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
import pytest
from example_manifest import make_manifest
from numpy.typing import NDArray

from veltair.errors import RequestError, TooLargeError
from veltair.profiles.artifact.consistency import find_inconsistency
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.artifact.manifest import Manifest, PackedLocation, Port
from veltair.profiles.artifact.strings import Strings

MANIFEST = make_manifest(
    max_batch=8,
    batches=(1, 8),
    inputs=(
        Port("dense", "float32", (-1, 3)),
        Port("a", "int64", (-1, 1), locations=(PackedLocation(0, 0),)),
        Port("many", "int64", (-1, 4), locations=(PackedLocation(0, 1),)),
        Port("s", "string", (-1, 1), locations=(PackedLocation(1, 0), PackedLocation(2, 0)), max_bytes=10),
        Port("b", "int64", (-1, 1), locations=(PackedLocation(0, 5),)),
        Port("t", "string", (-1, 1), locations=(PackedLocation(1, 1), PackedLocation(2, 10)), max_bytes=6),
        Port("w", "string", (-1, 3), locations=(PackedLocation(1, 2), PackedLocation(2, 16)), max_bytes=9),
    ),
    packed_buffers=(Port("ints", "int64", (-6,)), Port("ends", "int32", (-5,)), Port("letters", "uint8", (-25,))),
)
LAYOUT = InputLayout.of(MANIFEST)


def arrays(batch: int) -> list[NDArray[Any]]:
    """Input tensors that still hold old values."""
    return [np.full(port.at(batch), 77, port.dtype) for port in MANIFEST.input_tensors]


def values(seed: int, batch: int) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    return {
        "dense": chance.standard_normal((batch, 3)).astype(np.float32),
        **{name: chance.integers(0, 99, (batch, width)) for name, width in (("a", 1), ("many", 4), ("b", 1))},
        "s": Strings.from_values([chance.bytes(chance.integers(0, 11)) for _ in range(batch)]),
        "t": Strings.from_values([chance.bytes(chance.integers(0, 7)) for _ in range(batch)]),
        "w": Strings.from_values([chance.bytes(chance.integers(0, 4)) for _ in range(3 * batch)]),
    }


def found(where: list[NDArray[Any]], batch: int) -> dict[str, Any]:
    return {
        slot.port.name: slot.values.tolist() if slot.text is None else slot.strings().tolist()
        for slot in LAYOUT.slots(where, batch)
    }


def test_the_manifest_is_consistent() -> None:
    assert find_inconsistency(MANIFEST, 0) == ""


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_what_is_put_in_is_found(batch: int) -> None:
    where, given = arrays(8), values(batch, batch)
    LAYOUT.fill(where, given, batch)
    assert found(where, batch) == {n: v.tolist() for n, v in given.items()}


def test_several_queries_as_one() -> None:
    parts = []
    for batch in (2, 1, 5):
        where = arrays(8)
        LAYOUT.fill(where, values(batch, batch), batch)
        parts.append((where, batch))
    whole = arrays(8)
    LAYOUT.merge(whole, parts)
    expected = [values(batch, batch) for batch in (2, 1, 5)]
    assert found(whole, 8) == {n: [row for part in expected for row in part[n].tolist()] for n in expected[0]}


@pytest.mark.parametrize(
    ("name", "value", "error", "says"),
    [
        (
            "s",
            Strings.from_values([b"x" * 21, b""]),
            TooLargeError,
            "'s': 21 bytes of text in 2 rows; at most 10 a row, on av",
        ),
        ("s", Strings.from_values([b"x"]), RequestError, "'s': expected uint8 data and 3 int32 offsets"),
        ("s", np.zeros((2, 1), np.int64), RequestError, "'s': expected 2 strings, got int64"),
        ("a", Strings.from_values([b"", b""]), RequestError, r"'a': expected int64 \[2, 1\], got 2 strings"),
        ("a", np.zeros(3, np.int64), RequestError, r"'a': expected int64 \[2, 1\], got int64 \[3\]"),
        ("b", None, RequestError, "'b' is missing"),
    ],
)
def test_what_does_not_fit_names_the_input(name: str, value: Any, error: type[Exception], says: str) -> None:
    given = {n: v for n, v in (values(0, 2) | {name: value}).items() if v is not None}
    with pytest.raises(error, match=says):
        LAYOUT.fill(arrays(8), given, 2)


@pytest.mark.parametrize(
    ("alter", "says"),
    [
        (lambda m: m["inputs"][1]["places"][0].update(start=1), "input a begins at 1 of packed buffer 0, expected 0"),
        (
            lambda m: m["inputs"][1]["places"][0].update(bank=9),
            "input a is int64; expected packed buffers of int64, found ",
        ),
        (lambda m: m["inputs"][3].update(max_bytes=0), "input s has shape .* and 0 bytes"),
        (lambda m: m["inputs"][6].update(max_bytes=10), "inputs fill 26 of packed buffer letters, which holds 25"),
        (lambda m: m["inputs"][3].update(places=[]), "input s is string; expected packed buffers of int32 and uint8"),
        (lambda m: m["banks"][0].update(shape=[6]), "packed buffer ints has shape"),
    ],
)
def test_inconsistent_locations_are_refused(alter: Any, says: str) -> None:
    plain = msgspec.json.decode(msgspec.json.encode(MANIFEST))
    alter(plain)
    assert re.match(says, find_inconsistency(msgspec.convert(plain, Manifest), 0))
