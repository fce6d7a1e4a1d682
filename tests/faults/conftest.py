"""The suite of faults: each test breaks something, a few times here, many times in `python -m bench.faults`."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

FULL = os.environ.get("VELTAIR_FAULTS") == "full"


@pytest.fixture
def rounds(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., range]:
    """`for each in rounds(quick=1, full=40)`; how often is kept for the page of results."""

    def times(*, quick: int, full: int) -> range:
        count = full if FULL else quick
        record_property("tried", count)
        record_property("promise", (request.function.__doc__ or "").strip().splitlines()[0])
        return range(count)

    return times
