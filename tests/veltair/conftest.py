"""What all tests below share that compile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from short_measurements import short_measurements


@pytest.fixture(scope="session", autouse=True)
def measured_shortly() -> Iterator[None]:
    with short_measurements():
        yield
