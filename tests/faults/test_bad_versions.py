"""New versions of a model that cannot be served: the one before serves on, and the error says what is wrong."""

from __future__ import annotations

import hashlib
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
from running_daemon import Daemon, configuration, running, serve
from running_engine import WAIT_S
from traffic import first_answer, no_shared_memory_left, processes, traffic

from veltair.profiles.artifact.artifact_folder import KERNELS, MANIFEST, WEIGHTS

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]


def change_manifest(folder: Path, **changes: Any) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def truncate_manifest(folder: Path) -> None:
    path = folder / MANIFEST
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_weights(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def replace_library(folder: Path) -> None:
    """By a file that is no library, and has the digest that the manifest says."""
    content = b"#!/bin/sh\nexit 1\n" * 100
    (folder / KERNELS).write_bytes(content)
    change_manifest(folder, kernels_digest=hashlib.sha256(content).hexdigest())


def shorten_weights(folder: Path) -> None:
    """With a digest that fits: only its layers say that there must be more."""
    content = (folder / WEIGHTS).read_bytes()[:64]
    (folder / WEIGHTS).write_bytes(content)
    change_manifest(folder, weights_digest=hashlib.sha256(content).hexdigest())


def exchange_weights(folder: Path) -> None:
    """By those of another network of the same shape, with the digest that fits: all layers' in reverse."""
    content = np.fromfile(folder / WEIGHTS, np.float32)[::-1].tobytes()
    (folder / WEIGHTS).write_bytes(content)
    change_manifest(folder, weights_digest=hashlib.sha256(content).hexdigest())


def misdirect_version(folder: Path) -> None:
    """One code version of one layer reads another layer's weights: all others compute what they should."""
    manifest = json.loads((folder / MANIFEST).read_text())
    version = manifest["layers"][1]["versions"][1]
    weight = version["arguments"][1]
    manifest["buffers"].append(manifest["buffers"][weight] | {"offset": 0})
    version["arguments"][1] = len(manifest["buffers"]) - 1
    change_manifest(folder, **manifest)


# What is done to the artifact, and what the error names.
BAD: dict[str, tuple[Callable[[Path], None], str]] = {
    "manifest truncated": (truncate_manifest, MANIFEST),
    "weights flipped": (flip_weights, f"{WEIGHTS}: truncated or altered"),
    "weights short": (shorten_weights, "(weight) ends at 2048, past 64"),
    "library no ELF": (replace_library, "cannot be loaded"),
    "weights exchanged": (exchange_weights, "output y, code versions 0: found "),
    "one version wrong": (misdirect_version, "output y, code versions 1: found "),
    "another CPU's": (lambda folder: change_manifest(folder, features=["no_such_isa"]), "no_such_isa"),
    "another schema": (lambda folder: change_manifest(folder, schema=99), "artifact schema 99, this version reads"),
}


def load(daemon: Daemon) -> tuple[int, str]:
    """Status and error of a load over HTTP."""
    try:
        with urllib.request.urlopen(f"http://{daemon.http}/v2/repository/models/mlp/load", data=b"{}") as done:
            return done.status, ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)["error"]


def test_a_bad_version_leaves_the_old_one_serving(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """A new version is broken in eight ways: the old one serves bit by bit as before, and the error names the fault."""
    repository = tmp_path / "models"
    shutil.copytree(artifacts / "mlp", repository / "mlp" / "1")
    text = configuration(tmp_path, repository=str(repository), model_control=True)
    with running(tmp_path, text) as daemon:
        before = processes(daemon)["engine"]
        for _ in rounds(quick=1, full=40):
            with traffic(daemon) as asking, triton_grpc.InferenceServerClient(daemon.grpc) as client:
                for spoil, says in BAD.values():
                    shutil.copytree(artifacts / "mlp", repository / "mlp" / "2")
                    spoil(repository / "mlp" / "2")
                    status, error = load(daemon)
                    assert status == 400 and says in error and str(tmp_path) not in error, (status, error)
                    with pytest.raises(triton_grpc.InferenceServerException, match="mlp is not loaded") as caught:
                        client.load_model("mlp")
                    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT" and says in str(caught.value)
                    asking.served(20)
                    shutil.rmtree(repository / "mlp" / "2")
                assert load(daemon) == (200, "")
            assert set(asking.outcomes) == {"right"}, asking.outcomes
            assert np.array_equal(first_answer(daemon), asking.expected)
            assert processes(daemon)["engine"] == before


def test_a_bad_artifact_is_no_start(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """The daemon is started with an artifact broken in one of eight ways: exit code 2, and a last line that says so."""
    with no_shared_memory_left():
        chosen = rounds(quick=3, full=60)
        for number in chosen:
            spoil, says = list(BAD.values())[number % len(BAD) if len(chosen) > 3 else 2 * number + 1]
            shutil.copytree(artifacts / "mlp", tmp_path / "models" / "mlp")
            spoil(tmp_path / "models" / "mlp")
            process = serve(tmp_path, configuration(tmp_path / "models", "mlp"))
            out, log = process.communicate(timeout=WAIT_S)
            last = log.splitlines()[-1]
            assert process.returncode == 2 and not out
            assert last.startswith("veltair serve: ") and says in last
            shutil.rmtree(tmp_path / "models" / "mlp")
