"""`veltair query`, and the snippets that the other commands print, run as they are pasted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from example_models import digests, mlp_outputs

import veltair
from veltair.cli import main
from veltair.commands.usage import curl_snippet, python_snippet, snippets
from veltair.profiles.artifact.artifact_folder import load_artifact

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(artifacts: Path) -> Iterator[veltair.Daemon]:
    with veltair.serve({name: artifacts / name for name in ("mlp", "words")}, workers=1) as started:
        yield started


@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_random_inputs(daemon: veltair.Daemon, capsys: pytest.CaptureFixture[str], scheme: str) -> None:
    address = f"{scheme}://{getattr(daemon, scheme)}"
    assert main(["query", address, "mlp", "--random", "--batch", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["outputs"]["y"]["shape"] == [3, 8]
    assert facts["client_ms"] > 0 and facts["server_ms"]["execute"] > 0 and facts["blocks"]
    assert main(["query", address, "words"]) == 0
    shown = capsys.readouterr().out
    assert "digest" in shown and "int32 [1, 5]" in shown and "ms for this client; in the server" in shown


def test_inputs_and_outputs_in_files(
    daemon: veltair.Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 16), dtype=np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    given = ["--npz", str(tmp_path / "in.npz"), "--out", str(tmp_path / "out.npz")]
    assert main(["query", f"grpc://{daemon.grpc}", "mlp", *given]) == 0
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(found["y"], mlp_outputs(x), rtol=1e-4, atol=1e-4)
    assert main(["query", f"grpc://{daemon.grpc}", "mlp", *given]) == 2
    assert "out.npz: is there already; --force overwrites it" in capsys.readouterr().err
    assert main(["query", f"grpc://{daemon.grpc}", "mlp", *given, "--force"]) == 0
    np.savez(tmp_path / "words.npz", name=np.array([[b"ann"]]), text=np.array([[b"b"]]), id=np.array([[9]]))
    assert main(["query", daemon.grpc, "words", "--npz", str(tmp_path / "words.npz"), "--json"]) == 0
    out = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(out)["outputs"]["digest"]["first"] == digests([b"ann"], [b"b"], [9])[0]


def test_bad_inputs(daemon: veltair.Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    np.savez(tmp_path / "other.npz", z=np.zeros(3))
    for arguments, expected in (
        (["grpc://127.0.0.1:1", "mlp"], "cannot reach grpc://127.0.0.1:1"),
        ([daemon.grpc, "nope"], "unknown model"),
        ([daemon.grpc, "mlp", "--npz", str(tmp_path / "none.npz")], "No such file"),
        ([daemon.grpc, "mlp", "--npz", str(tmp_path / "text.npz")], "expected a file of np.savez"),
        ([daemon.grpc, "mlp", "--npz", str(tmp_path / "objects.npz")], "without pickled objects"),
        ([daemon.grpc, "mlp", "--npz", str(tmp_path / "other.npz")], "no input 'z'; it takes x"),
        (["ftp://host:1", "mlp", "--npz", str(tmp_path / "other.npz")], "expected grpc://HOST:PORT"),
    ):
        assert main(["query", *arguments]) == 2
        error = capsys.readouterr().err
        assert error.startswith("veltair query: ") and error.count("\n") == 1 and expected in error, error


@pytest.mark.parametrize("model", ["mlp", "words"])
def test_snippets_work_as_pasted(daemon: veltair.Daemon, artifacts: Path, model: str) -> None:
    manifest = load_artifact(artifacts / model).manifest
    [output] = manifest.outputs
    python = python_snippet(model, manifest.inputs, daemon.grpc)
    printed = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=True).stdout
    assert printed == f"{{'{output.name}': {output.at(1)}}}\n"
    shell = curl_snippet(model, manifest.inputs, daemon.http)
    found: Any = json.loads(subprocess.run(["sh", "-c", shell], capture_output=True, check=True).stdout)
    assert found["outputs"][0]["shape"] == list(output.at(1))
    assert f"veltair query grpc://{daemon.grpc} {model} --random" in snippets(model, manifest, "", daemon.grpc)
