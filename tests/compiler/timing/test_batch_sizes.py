"""The batch sizes that a model is timed at."""

from __future__ import annotations

import pytest

from veltair.compiler.timing.batch_sizes import batch_sizes


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, (1,)),
        (2, (1, 2)),
        (3, (1, 2, 3)),
        (12, (1, 2, 4, 8, 12)),
        (16, (1, 2, 4, 8, 16)),
        (128, (1, 4, 16, 32, 128)),
        (100, (1, 4, 16, 32, 100)),
    ],
)
def test_batch_sizes_are_few_and_reach_the_greatest(most: int, sizes: tuple[int, ...]) -> None:
    assert batch_sizes(most) == sizes
