"""RECom's E and F: how many columns of each kind they have, their towers, and raw features. Needs numpy alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

EDGES = np.linspace(-2.5, 2.5, 96).astype(np.float32)
BUCKETS, LARGE_ROWS = 1000, 1 << 18  # rows of a table behind a hash; the paper's large ones have 2**23
DIM, LARGE_DIM, MOST_TOKENS, DENSE = 8, 32, 10, 32
ABSENT = 0.3  # of the tokens of a list


class Recommender(NamedTuple):
    """Columns by kind, and the widths of the tower's layers before its score."""

    columns: dict[str, int]
    tower: tuple[int, ...]

    def named(self) -> list[tuple[str, str]]:
        """Kind and name of each column."""
        return [(kind, f"{kind}{place}") for kind, count in self.columns.items() for place in range(count)]


COLUMNS_OF_E = {"bucket": 880, "int": 50, "string": 50, "tokens": 15, "large": 5}
MODELS = {
    "recom-e": Recommender(COLUMNS_OF_E, (1024, 1024, 128)),
    "recom-e-columns": Recommender(COLUMNS_OF_E, ()),
    "recom-f": Recommender(
        {"bucket": 1000, "int": 90, "string": 100, "tokens": 7, "large": 3}, (2048, 1024, 1024, 512)
    ),
    "tenth": Recommender({"bucket": 88, "int": 5, "string": 5, "tokens": 2, "large": 1}, (1024, 1024, 128)),
}


def raw_features(model: Recommender, batch: int) -> dict[str, Any]:
    """Raw features by name, (batch, values); texts are of bytes. Always the same for one batch size."""
    chance = np.random.default_rng(batch)
    words = np.array([b"word%d" % i for i in chance.integers(0, 1 << 30, 4096)])
    found: dict[str, Any] = {"dense": chance.standard_normal((batch, DENSE)).astype(np.float32)}
    for kind, name in model.named():
        if kind == "bucket":
            value = chance.standard_normal((batch, 1)).astype(np.float32)
        elif kind == "int":
            value = chance.integers(0, 1 << 40, (batch, 1))
        else:
            many = 1 if kind == "string" else MOST_TOKENS
            value = words[chance.integers(0, len(words), (batch, many))]
            value[(chance.random(value.shape) < ABSENT) & (np.arange(many) > 0)] = b""
        found[name] = value
    return found
