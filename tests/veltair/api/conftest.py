"""A daemon that the Python API has started, for a module's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import veltair


@pytest.fixture(scope="module")
def daemon(artifacts: Path) -> Iterator[veltair.Daemon]:
    patient = [
        veltair.TenantConfig(name=name, artifact=str(artifacts / name), qos_ms=60_000.0)
        for name in ("mlp", "spin", "words")
    ]
    with veltair.serve(patient, workers=2) as started:
        yield started
