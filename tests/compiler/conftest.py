"""One small image model, compiled once for all tests of the compiler; and commands run in this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from compiled_models import Told, image_model, records
from short_measurements import measured_shortly  # noqa: F401

from veltair.cli import main
from veltair.compiler.build import compile_model
from veltair.profiles.artifact.artifact_folder import Artifact

# TVM reads these when its pool of threads starts, with the first kernel. By default it takes one thread on two cores,
# and tasks that write to each other's memory would pass; and threads that wait would keep other tests' cores busy.
os.environ |= {"TVM_NUM_THREADS": "2", "TVM_BIND_THREADS": "0", "TVM_THREAD_POOL_SPIN_COUNT": "0"}


@pytest.fixture
def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Told:
    """Runs a command in this process: its exit code, its output and what it said besides."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "xdg"))
    return lambda *arguments: (main([str(a) for a in arguments]), *capsys.readouterr())


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Artifact]:
    """The folder, the ONNX file and the artifact of the image model."""
    folder = tmp_path_factory.mktemp("image")
    model = image_model(folder / "tiny.onnx")
    made = compile_model(model, folder / "out", trials=6, precision="fp32", store=records(folder))
    return folder, model, made
