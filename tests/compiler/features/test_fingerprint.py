"""Fingerprint64 against FarmHash's own, and what TensorFlow's documentation says of it."""

from __future__ import annotations

import random

import farmhash
import numpy as np
from features.compiled_columns import CompiledColumns, make_description

from veltair.compiler.features.fingerprint import fingerprint64


def test_equals_farmhash_in_every_class_of_lengths() -> None:
    chance = random.Random(5)
    for size in [*range(260)] * 8 + [1000, 4096, 64 * 9, 64 * 9 + 1]:
        text = chance.randbytes(size)
        assert fingerprint64(text) == farmhash.fingerprint64(text), size


def test_buckets_of_tensorflows_documentation() -> None:
    assert [fingerprint64(text) % 3 for text in (b"Hello", b"TensorFlow", b"2.x")] == [0, 2, 2]


def test_the_kernels_hash_equals_farmhash() -> None:
    """A table whose rows hold their own numbers shows the bucket, to 24 bits."""
    rows, count = (1 << 24) - 3, 100_000
    table = np.arange(rows, dtype=np.float32).reshape(-1, 1)
    features = [{"name": "s", "kind": "string", "empty": "keep"}, {"name": "i", "kind": "int", "missing": False}]
    columns = [{"feature": name, "hash": rows, "table": "t"} for name in ("s", "i")]
    numbers = make_description(features, columns, t=(rows, 1))
    code = CompiledColumns(numbers, {"rows": 256, "columns": 8, "along": "rows", "ahead": 0}, tables={"t": table})
    chance = random.Random(7)
    noise = chance.randbytes(1 << 16)
    spans = [
        (chance.randrange(1 << 15), chance.randrange(chance.choice([4, 9, 17, 33, 65, 300]))) for _ in range(count)
    ]
    texts = [noise[start : start + size] for start, size in spans]
    ints = [chance.randrange(-(1 << 63), 1 << 63) >> chance.randrange(64) for _ in range(count)]
    out = code({"s": texts, "i": np.array(ints)}, count)
    assert out[:, 0].tolist() == [farmhash.fingerprint64(text) % rows for text in texts]
    assert out[:, 1].tolist() == [farmhash.fingerprint64(b"%d" % number) % rows for number in ints]
