"""Random raw features: every feature that a column reads, and no other."""

from __future__ import annotations

from typing import Any

import numpy as np

from veltair.compiler.features.feature_description import (
    ColumnInput,
    CrossPart,
    Feature,
    FeatureColumn,
    FeatureDescription,
)
from veltair.compiler.features.random_features import draw_features
from veltair.profiles.artifact.strings import Strings

DESCRIPTION = FeatureDescription(
    features=(
        Feature(name="age", kind="float"),
        Feature(name="user", kind="int"),
        Feature(name="city", kind="string", max_bytes=16),
        Feature(name="history", kind="tokens", max_bytes=64, separator=";", truncate=4),
    ),
    columns=(
        FeatureColumn(name="a", feature="age", boundaries=(10.0, 20.0)),
        FeatureColumn(name="u", feature="user", identity=50),
        FeatureColumn(
            name="c",
            feature="age",
            crossed=(
                CrossPart(feature="age", boundaries=(30.0, 40.0)),
                CrossPart(feature="city", vocabulary=("a", "b")),
            ),
            hash=100,
        ),
        FeatureColumn(name="h", feature="history", hash=1000),
    ),
    inputs=(ColumnInput(name="x", columns=("a", "u", "c", "h")),),
)


def is_empty(values: np.ndarray | Strings) -> bool:
    return not (values.data.size if isinstance(values, Strings) else values.any())


def test_all_are_drawn() -> None:
    found = draw_features(DESCRIPTION, 64, np.random.default_rng(0))
    assert list(found) == ["age", "user", "city", "history"]
    assert not any(map(is_empty, found.values()))


def test_what_a_part_of_a_cross_looks_up_is_drawn() -> None:
    words: Any = draw_features(DESCRIPTION, 64, np.random.default_rng(0))["city"]
    assert {b"a", b"b"} <= set(words.tolist()) <= {b"a", b"b", b""}


def test_what_is_not_read_is_empty() -> None:
    found = draw_features(DESCRIPTION, 64, np.random.default_rng(0), read={"user", "history"})
    assert [name for name, values in found.items() if is_empty(values)] == ["age", "city"]
    assert found["age"].shape == (64, 1) and len(found["city"].tolist()) == 64
