"""Helpers of the tests: a description with columns of many kinds, and random raw features for it."""

from __future__ import annotations

from typing import Any

import numpy as np

DESCRIPTION = """
features = [
    { name = "age", kind = "float" },
    { name = "user", kind = "int" },
    { name = "shops", kind = "int", width = 3, missing = 0 },
    { name = "city", kind = "string" },
    { name = "kept", kind = "string", empty = "keep" },
    { name = "items", kind = "tokens", separator = ";", truncate = 4 },
    { name = "words", kind = "tokens", separator = " " },
    { name = "scores", kind = "dense", width = 2 },
]
tables = [
    { name = "ages", rows = 4, dim = 4, file = "4.npy" },
    { name = "few", rows = 7, dim = 7, file = "7.npy" },
    { name = "many", rows = 11, dim = 11, file = "11.npy" },
]
columns = [
    { feature = "age", boundaries = [18, 35, 65], table = "ages" },
    { feature = "user", hash = 11, table = "many" },
    { name = "user.known", feature = "user", vocabulary = [5, 7, -3], oov = 3, table = "few" },
    { feature = "shops", identity = 9, combiner = "sum", table = "few" },
    { feature = "city", hash = 7, table = "few", empty_row = 6 },
    { name = "city.kept", feature = "city", vocabulary = ["rome-a", "oslo-"], default = 5, table = "few", parts = [
        { feature = "city", case = "lower" }, { text = "-" }, { feature = "kept" } ] },
    { feature = "items", hash = 11, combiner = "sum", table = "many" },
    { feature = "words", vocabulary = ["a", "b", ""], combiner = "sum", guards = [{ remove = [0, 2] }], table = "few" },
    { feature = "scores" },
    { name = "items.ids", feature = "items", hash = 100, first_id = 1, combiner = "sequence" },
    { name = "items.length", feature = "items", length = true },
    { name = "words.number", feature = "words", number = true, combiner = "sum" },
]
inputs = [
    { name = "x", columns = ["age", "user", "user.known", "shops", "city", "city.kept", "items", "words", "scores",
        "words.number"] },
    { name = "ids", columns = ["items.ids", "items.length"] },
]
"""
# Columns that are served, too, and the rows of the table of each bag: a kernel of them all takes minutes to compile.
SERVED = {"age": 4, "user": 11, "city": 7, "items": 11}


def some_rows(count: int, seed: int = 0) -> dict[str, Any]:
    chance = np.random.default_rng(seed)
    texts = [b"", b"Rome", b"OSLO", b"\xff\0", b"a", b"b", "Zürich".encode(), b"a long name of sixteen or more bytes"]

    def joined(separator: bytes) -> list[bytes]:
        return [
            separator.join(texts[i] for i in chance.integers(len(texts), size=n)) for n in chance.integers(0, 9, count)
        ]

    ages = chance.normal(40, 25, count).astype(np.float32)
    ages[::7] = np.nan
    users = chance.integers(-3, 9, count)
    users[1::5] = -(1 << 63)
    return {
        "age": ages,
        "user": users,
        "shops": chance.integers(-1, 10, (count, 3)),
        "city": [texts[i] for i in chance.integers(len(texts), size=count)],
        "kept": [[b"", b"a"][i] for i in chance.integers(2, size=count)],
        "items": joined(b";"),
        "words": [b" ".join(text.split(b" ")) for text in joined(b" ")],
        "scores": chance.standard_normal((count, 2)).astype(np.float32),
    }
