"""`veltair compile` for real: batches, precisions, CPUs, wrong options, an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from compiled_models import CLI, Told, bag_model, image_model, run
from run_kernels import require_features

from veltair.compiler.build import compile_model
from veltair.errors import ModelError
from veltair.machine.isa import ISAS
from veltair.profiles.artifact.artifact_folder import load_artifact


def test_a_dynamic_batch_is_timed_and_right_at_several_sizes(tmp_path: Path, told: Told) -> None:
    model = bag_model(tmp_path / "bags.onnx")
    done = run(tmp_path, "compile", model, "--out", tmp_path / "out", "--trials", 0, "--max-batch", 12, "--json")
    assert done.returncode == 0, done.stderr
    manifest = load_artifact(tmp_path / "out").manifest
    assert (manifest.max_batch, manifest.batches) == (12, (1, 2, 4, 8, 12))
    assert [(p.name, p.shape, p.low, p.high) for p in manifest.inputs] == [
        ("ids0", (-1, 5), 0, 999),
        ("ids1", (-1, 5), 0, 499),
    ]
    dense = next(layer for layer in manifest.layers if layer.op == "matmul")
    assert [flops / dense.flops[0] for flops in dense.flops] == [1, 2, 4, 8, 12]
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]
    assert facts["batches"] == [1, 3, 12]


@pytest.mark.parametrize("isa", ["avx512_bf16", "amx"])
def test_bf16_is_right_within_its_tolerance(isa: str, tmp_path: Path, told: Told) -> None:
    require_features(ISAS[isa], f"code for {isa}")
    model = image_model(tmp_path / "tiny.onnx")
    options = ("--isa", isa, "--precision", "bf16", "--trials", 0)
    code, _, errors = told("compile", model, "--out", tmp_path / "out", *options)
    assert code == 0, errors
    assert load_artifact(tmp_path / "out").manifest.features == tuple(sorted(ISAS[isa]))
    assert [p.stem for p in (tmp_path / "xdg").rglob("*.jsonl")] == [isa]
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]
    assert 1e-4 < facts["max_rel_err"] < 2e-2  # so it is bf16 indeed


@pytest.mark.parametrize("isa", ["avx2", "avx512", "amx"])
def test_an_artifact_asks_for_what_its_code_needs(isa: str, tmp_path: Path, told: Told) -> None:
    """An fp32 one made on a CPU with tiles runs on any with AVX-512, and `--isa avx2` on any with AVX2."""
    require_features(ISAS[isa], f"code for {isa}")
    model = image_model(tmp_path / "tiny.onnx")
    options = ("--isa", isa, "--precision", "fp32", "--trials", 0)
    code, _, errors = told("compile", model, "--out", tmp_path / "out", *options)
    assert code == 0, errors
    manifest = load_artifact(tmp_path / "out").manifest
    assert manifest.features == (("avx2",) if isa == "avx2" else ("avx2", "avx512"))
    assert manifest.target["mcpu"] == ("x86-64-v3" if isa == "avx2" else "x86-64-v4")
    assert [p.stem for p in (tmp_path / "xdg").rglob("*.jsonl")] == ["avx2" if isa == "avx2" else "avx512"]
    _, output, _ = told("verify", tmp_path / "out", model, "--json")
    facts = json.loads(output)
    assert facts["ok"], facts["mismatches"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--trials", "-1"], "--trials: expected 0 or more"),
        (["--max-batch", "0"], "--max-batch: expected 1 or more"),
        (["--qos-ms", "0"], "--qos-ms: expected a positive number"),
        (["--qos-ms", "nan"], "--qos-ms: expected a positive number"),
        (
            ["--isa", "avx3"],
            "isa: expected one of avx2, avx512, avx512_vnni, avx512_bf16, amx, found 'avx3'; this CPU has",
        ),
        (
            ["--isa", "avx2", "--precision", "bf16"],
            "bf16 needs AVX-512-bf16 or AMX (avx512_bf16, amx_bf16), isa avx2 has",
        ),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, options: list[str], says: str, told: Told) -> None:
    code, output, errors = told("compile", "m.onnx", "--out", tmp_path / "out", *options)
    assert (code, output) == (2, "")
    assert says in errors
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_that_is_there_is_replaced_on_request_alone(tmp_path: Path, told: Told) -> None:
    model, out = image_model(tmp_path / "tiny.onnx"), tmp_path / "out"
    out.mkdir()  # an empty folder is nothing to keep
    command = ("compile", model, "--out", out, "--trials", 0, "--precision", "fp32", "--levels", "model")
    code, _, errors = told(*command)
    assert code == 0, errors
    digest = load_artifact(out).digest
    code, output, errors = told(*command, "--qos-ms", 77)
    assert (code, output) == (2, "")
    assert errors.endswith(f"{out}: is there already; --force overwrites it\n")
    assert load_artifact(out).digest == digest
    code, _, errors = told(*command, "--qos-ms", 77, "--force")
    assert code == 0, errors
    assert load_artifact(out).manifest.qos_ns == 77_000_000


def test_no_onnx_no_artifact(tmp_path: Path, told: Told) -> None:
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    code, _, errors = told("compile", tmp_path / "m.onnx", "--out", tmp_path / "out")
    assert code == 2
    assert "m.onnx: not an ONNX" in errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.onnx"]
    with pytest.raises(ModelError):
        compile_model(tmp_path / "absent.onnx", tmp_path / "out")


def test_an_interrupt_ends_cleanly_and_keeps_the_measurements(tmp_path: Path) -> None:
    model = image_model(tmp_path / "tiny.onnx")
    environment = os.environ | {"XDG_DATA_HOME": str(tmp_path / "xdg")}
    command = [*CLI, "compile", str(model), "--out", str(tmp_path / "out"), "--precision", "fp32"]
    compiling = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    folder = tmp_path / "xdg" / "veltair" / "records"
    while compiling.poll() is None and not [p for p in folder.glob("*.jsonl") if b"\n" in p.read_bytes()]:
        time.sleep(0.01)  # leaves the core to it
    compiling.send_signal(signal.SIGINT)
    _, errors = compiling.communicate(timeout=60)
    assert compiling.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["tiny.onnx", "xdg"]
    (kept,) = folder.glob("*.jsonl")
    assert kept.read_bytes().endswith(b"\n")
