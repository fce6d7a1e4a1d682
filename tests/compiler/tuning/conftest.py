"""The meter that searches measure with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from veltair.compiler.timing.measure import Meter
from veltair.machine.topology import usable_machine


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter(usable_machine().cores) as meter:
        yield meter
