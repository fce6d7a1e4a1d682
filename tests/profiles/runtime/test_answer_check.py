"""An artifact runs on the inputs of its answer: what it computes is kept, and what it does not compute is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest

from veltair.errors import ArtifactError, VeltairError
from veltair.profiles.artifact.artifact_folder import MANIFEST, WEIGHTS, file_digest, load_artifact
from veltair.profiles.artifact.manifest import Manifest
from veltair.profiles.runtime.answer_check import check_answer, store_answer
from veltair.profiles.runtime.executor import Executor


@pytest.fixture
def folder(artifacts: Path, tmp_path: Path) -> Path:
    return shutil.copytree(artifacts / "mlp", tmp_path / "mlp")


def read(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)


def test_what_was_kept_is_computed(folder: Path) -> None:
    artifact = load_artifact(folder)
    check_answer(folder, Executor(artifact))
    before = artifact.manifest
    assert before.answer is not None and len(before.answer.outputs[0].values) == 8
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(before, answer=None)))
    store_answer(folder)
    assert read(folder) == before


def test_other_weights_are_refused(folder: Path) -> None:
    weights = np.fromfile(folder / WEIGHTS, np.float32)
    (weights * np.float32(1.01)).tofile(folder / WEIGHTS)
    digest = file_digest(folder / WEIGHTS)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(read(folder), weights_digest=digest)))
    changed = Executor(load_artifact(folder))
    with pytest.raises(
        ArtifactError, match="mlp: it does not compute what it did when it was compiled: output y, code"
    ):
        check_answer(folder, changed)


def test_without_an_answer_it_is_run_alone(folder: Path) -> None:
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(read(folder), answer=None)))
    check_answer(folder, Executor(load_artifact(folder)))


def test_what_crashes_has_no_answer(artifacts: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(artifacts / "crash", tmp_path / "crash")
    manifest = read(folder)
    turns, seed = manifest.inputs
    inputs = (msgspec.structs.replace(turns, low=1, high=1), seed)
    (folder / MANIFEST).write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, inputs=inputs)))
    with pytest.raises(VeltairError, match="the compiled model does not run: killed by signal 11"):
        store_answer(folder)
