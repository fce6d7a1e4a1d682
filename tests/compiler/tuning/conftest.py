"""The meter that searches measure with, and a first compile for those that follow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled_models import image_model
from repeated_compiles import Compiles

from veltair.compiler.timing.measure import Meter
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import load_artifact


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter(usable_machine().cores) as meter:
        yield meter


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Compiles:
    """A first compile, whose cache was empty."""
    folder = tmp_path_factory.mktemp("cold")
    found = Compiles(folder, image_model(folder / "tiny.onnx"))
    counts = found.again()
    assert counts.objects_built == counts.tables_measured == len(found.entries("objects")) > 2
    assert counts.objects_reused == counts.tables_reused == 0
    return found


@pytest.fixture
def compiles(cold: Compiles, tmp_path: Path) -> Compiles:
    """What the first compile left, in a folder of its own."""
    shutil.copytree(cold.folder, tmp_path / "after")
    folder = tmp_path / "after"
    return Compiles(folder, folder / "tiny.onnx", cold.made, load_artifact(folder / "out1"))
