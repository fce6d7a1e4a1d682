"""Fingerprint64 against FarmHash's own, and what TensorFlow's documentation says of it."""

from __future__ import annotations

import random

import pytest

from veltair.compiler.columns.fingerprint import fingerprint64

farmhash = pytest.importorskip("farmhash", reason="pyfarmhash (extra dev) is the oracle of Fingerprint64")


def test_equals_farmhash_in_every_class_of_lengths() -> None:
    chance = random.Random(5)
    for size in [*range(260)] * 8 + [1000, 4096, 64 * 9, 64 * 9 + 1]:
        text = chance.randbytes(size)
        assert fingerprint64(text) == farmhash.fingerprint64(text), size


def test_buckets_of_tensorflows_documentation() -> None:
    assert [fingerprint64(text) % 3 for text in (b"Hello", b"TensorFlow", b"2.x")] == [0, 2, 2]
