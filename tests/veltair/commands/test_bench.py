"""`veltair bench` on a small network of its own: what it prints, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from veltair.cli import main


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "veltair.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An artifact and its model: one convolution."""
    folder = tmp_path_factory.mktemp("bench")
    weight = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 8, 8])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = folder / "one.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "xdg"))
        assert main(["compile", str(model), "--out", str(folder / "one"), "--precision", "fp32", "--trials", "0"]) == 0
    return folder / "one", model


def test_every_engine_is_timed_on_every_thread_count(compiled: tuple[Path, Path]) -> None:
    artifact, model = compiled
    options = ("--also", artifact, "--against", "ort", "--threads", "1,1", "--rounds", 1, "--json")
    done = run("bench", artifact, model, *options)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    entries = [(row["engine"], row["precision"], row["threads"]) for row in facts["rows"]]
    one = [("veltair", "fp32", 1), ("veltair", "fp32", 1), ("onnxruntime", "fp32", 1)]
    assert entries == [*one, *one]
    assert all(row["median_ms"] > 0 for row in facts["rows"])
    assert facts["model"] == "one" and facts["environment"]["cores"] >= 1


def test_an_engine_that_cannot_run_the_model_is_left_out_unless_it_was_asked_for(tmp_path: Path) -> None:
    scaler = helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[1.0] * 8, scale=[2.0] * 8)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in "xy"]
    graph = helper.make_graph([scaler], "net", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), model)
    assert main(["compile", str(model), "--out", str(tmp_path / "net"), "--precision", "fp32", "--trials", "0"]) == 0
    done = run("bench", tmp_path / "net", model, "--threads", 1, "--rounds", 1, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert [row["engine"] for row in facts["rows"]] == ["veltair", "onnxruntime"]
    assert "openvino on 1 threads did not start: " in facts["left_out"]["openvino on 1 threads"]
    done = run("bench", tmp_path / "net", model, "--threads", 1, "--rounds", 1, "--against", "openvino")
    assert done.returncode == 1 and "openvino on 1 threads did not start: " in done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--against", "tflite"), "--against tflite: expected ort or openvino"),
        (("--threads", "two"), "--threads two: expected numbers"),
        (("--threads", "0"), "--threads 0: this machine offers 1"),
        (("--rounds", "0"), "--rounds 0: expected at least 1"),
        (("--batch", "2"), "--batch 2:"),
        (("--also", "nowhere"), "nowhere"),
    ],
)
def test_a_wrong_option_is_named(
    compiled: tuple[Path, Path], options: tuple[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *map(str, compiled), *options]) == 2
    assert says in capsys.readouterr().err


def test_another_model_than_the_artifact_s_is_refused(
    compiled: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, model = compiled
    other = onnx.load(model)
    other.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((16, 16, 3, 3), np.float32), "w"))
    onnx.save(other, tmp_path / "other.onnx")
    assert main(["bench", str(artifact), str(tmp_path / "other.onnx"), "--against", "ort"]) == 2
    assert "other.onnx: is not the file that" in capsys.readouterr().err
