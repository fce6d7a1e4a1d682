"""The suite of faults: each test breaks something, a few times here, many times in `python -m bench.faults`.

With `VELTAIR_FAULTS=full` each runs as many rounds as the page of results says, with `VELTAIR_FAULTS_SHARE=0.05` also
set a twentieth of them. `VELTAIR_FAULTS_MODELS` names a folder of artifacts that are served beside the small ones where
it is measured how long a recovery takes.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FULL = os.environ.get("VELTAIR_FAULTS") == "full"
MODELS = os.environ.get("VELTAIR_FAULTS_MODELS")
SHARE = float(os.environ.get("VELTAIR_FAULTS_SHARE", "1"))


@pytest.fixture
def rounds(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Callable[..., range]:
    """`for each in rounds(quick=1, full=40)`; how often is kept for the page of results. With `quick=0` a test is
    skipped but in full runs: another one breaks nearly the same."""

    def times(*, quick: int, full: int) -> range:
        count = max(1, round(full * SHARE)) if FULL else quick
        if not count:
            pytest.skip("in full runs alone: python -m bench.faults")
        record_property("tried", count)
        record_property("promise", " ".join((request.function.__doc__ or "").split()))
        return range(count)

    return times


@pytest.fixture
def recovered(record_property: Callable[[str, object], None]) -> Iterator[Callable[[float], None]]:
    """`recovered(seconds)`: how long it took to be whole again, which is measured for the page and not judged."""
    seconds: list[float] = []
    yield seconds.append
    if seconds:
        record_property("recovery", f"{statistics.median(seconds):.2f} {max(seconds):.2f}")


@pytest.fixture
def beside(record_property: Callable[[str, object], None]) -> str:
    """Further tenants for the end of a configuration: those of `VELTAIR_FAULTS_MODELS`."""
    folders = sorted(Path(MODELS).resolve().glob("*/manifest.json")) if MODELS else []
    record_property("beside", " ".join(manifest.parent.name for manifest in folders))
    return "".join(f'[[tenants]]\nname = "{each.parent.name}"\nartifact = "{each.parent}"\n' for each in folders)
