"""Code paths: which columns share the code of a kernel."""

from __future__ import annotations

import pytest

from veltair.compiler.features.feature_description import Feature, FeatureColumn
from veltair.compiler.features.kernel.code_path import Combination, code_path


@pytest.mark.parametrize(
    ("feature", "combination"),
    [
        ({"kind": "string"}, Combination.ONE),
        ({"kind": "int"}, Combination.ONE),
        ({"kind": "int", "width": 2}, Combination.MANY),
        ({"kind": "tokens", "truncate": 1}, Combination.ONE),
        ({"kind": "tokens", "truncate": 2}, Combination.MANY),
        ({"kind": "tokens"}, Combination.MANY),
    ],
)
def test_a_row_with_one_value_at_most_needs_no_reduction(feature: dict[str, object], combination: Combination) -> None:
    column = FeatureColumn(feature="f", hash=10, table="t")
    assert code_path(column, Feature(name="f", **feature)).combination is combination  # type: ignore[arg-type]
