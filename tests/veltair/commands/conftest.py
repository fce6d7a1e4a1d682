from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_server_process import FakeServer, start_fake_server


@pytest.fixture(scope="session")
def fake_server() -> Iterator[FakeServer]:
    with start_fake_server() as server:
        yield server


@pytest.fixture
def own_fake_server() -> Iterator[FakeServer]:
    """A server that the test may kill, and whose counts are its own."""
    with start_fake_server() as server:
        yield server
