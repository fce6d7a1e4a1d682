"""Measurements of a compile that end soon: tests look at what was measured and kept, and at no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from veltair.compiler.timing import co_runners, latency_tables, measure, modelled_interference

BUDGET_NS = 1_000_000  # a kernel of some microseconds still runs hundreds of times
WINDOW_NS = 4_000_000  # of streaming through memory
MEMORY_BYTES = 64 << 20  # of the machine: its caches may be larger, and to fill buffers of twice their size takes time


@pytest.fixture(scope="session", autouse=True)
def measured_shortly() -> Iterator[None]:
    """Compiles of this process measure each kernel, and the memory, for a fraction of the time that users' do: below
    each `conftest.py` that imports it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "BUDGET_NS", BUDGET_NS)
        patch.setattr(latency_tables, "BUDGET_NS", BUDGET_NS)
        patch.setattr(modelled_interference, "WINDOW_NS", WINDOW_NS)
        patch.setattr(modelled_interference, "memory_bytes", lambda: MEMORY_BYTES)
        patch.setattr(co_runners, "memory_bytes", lambda: MEMORY_BYTES)
        yield
