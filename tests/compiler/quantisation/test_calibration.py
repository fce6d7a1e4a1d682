"""Files of floats become artifacts of 8-bit integers, whose accuracy is stated against the float file."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from bert import Bert
from compiled_models import Told, bag_model
from onnx import helper
from quantised_models import dense_net, image_net, quantise, save

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.quantisation.calibration import calibrate
from veltair.errors import DataError, ModelError
from veltair.profiles.artifact.artifact_folder import file_digest, load_artifact


def data(path: Path, *shape: int) -> Path:
    np.savez(path, x=np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    return path


def test_compile_and_verify(tmp_path: Path, told: Told) -> None:
    model, samples, out = image_net(tmp_path / "net.onnx"), data(tmp_path / "d.npz", 8, 3, 26, 26), tmp_path / "out"
    options = ("--trials", 0, "--levels", "model", "--max-batch", 1, "--json")
    code, text, errors = told("compile", model, "--out", out, "--precision", "int8", "--calibrate", samples, *options)
    assert code == 0, errors
    facts = json.loads(text)
    assert (facts["model"], facts["int8_layers"], facts["layers"]) == ("net", 5, 9)
    manifest = load_artifact(out).manifest
    assert (manifest.calibrated, manifest.source_digest) == (8, file_digest(model))
    code, text, errors = told("verify", out, model, "--data", samples, "--json")
    (found,) = json.loads(text)["outputs"]
    assert code == 0, errors
    assert (found["name"], found["samples"], found["ok"]) == ("y", 8, True)
    assert 1e-4 < found["mean_rel_err"] < 0.05
    assert found["cosine"] > 0.99 and found["snr_db"] > 20 and found["same_argmax"] > 0.8
    assert told("verify", out, model, "--data", samples)[0] == 0
    code, text, errors = told("verify", out, model)
    assert (code, text) == (2, "") and "give samples (--data DATA.npz)" in errors
    code, _, errors = told("verify", out, model, "--data", data(tmp_path / "other.npz", 8, 3, 26, 25))
    assert code == 2 and "array 'x': expected float32" in errors
    arrays = dict(np.load(samples))
    assert veltair.measure_accuracy(out, model, arrays)[0].same_argmax == found["same_argmax"]


def test_a_transformer_keeps_its_sums_in_floats(tmp_path: Path) -> None:
    model = Bert(1, 2, 32, 8, "n").save(tmp_path / "bert.onnx")
    rng = np.random.default_rng(0)
    arrays = {name: rng.integers(0, 2, (3, 8)) for name in ("input_ids", "token_type_ids", "attention_mask")}
    path, count = calibrate(model, arrays, tmp_path)
    ops = Counter(layer.op for layer in lower(load_model(path, 4), "fp32").layers)
    assert (count, ops["matmul_int8"], ops["matmul"]) == (3, 7, 0)
    graph = onnx.load(path).graph
    rounded = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    assert not [node for node in graph.node if node.op_type == "LayerNormalization" and rounded & set(node.input)]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--precision", "int8"],
            "int8 needs samples of its inputs (--calibrate DATA.npz)",
        ),
        (["--calibrate", "d.npz"], "--calibrate: is for --precision int8, not auto"),
        (["--precision", "int8", "--calibrate", "d.npz"], "d.npz: No such file"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, options: list[str], says: str, told: Told) -> None:
    model = dense_net(tmp_path / "net.onnx")
    code, text, errors = told("compile", model, "--out", tmp_path / "out", *options)
    assert (code, text) == (2, "") and says in errors
    assert [entry.name for entry in tmp_path.iterdir()] == ["net.onnx"]


def test_files_that_cannot_be_calibrated(tmp_path: Path) -> None:
    samples = data(tmp_path / "d.npz", 4, 50)
    with pytest.raises(ModelError, match="quantised already"):
        calibrate(quantise(dense_net(tmp_path / "net.onnx"), "qdq"), samples, tmp_path)
    bare = save(tmp_path / "bare.onnx", [helper.make_node("Relu", ["x"], ["y"])], {}, ["n", 50], ["n", 50])
    with pytest.raises(ModelError, match="no convolution or dense layer that 8-bit integers compute"):
        calibrate(bare, samples, tmp_path)
    ids = {f"ids{i}": np.full((2, 5), 10**6) for i in range(2)}
    with pytest.raises(ModelError, match="cannot be calibrated"):
        calibrate(bag_model(tmp_path / "bags.onnx"), ids, tmp_path)


def test_samples_that_overflow(tmp_path: Path) -> None:
    huge = {"x": np.full((2, 50), 3e38, np.float32)}
    with pytest.raises(DataError, match="expected samples whose results are finite; with these, some overflow"):
        calibrate(dense_net(tmp_path / "net.onnx"), huge, tmp_path)


def test_beside_an_open_dimension(tmp_path: Path, told: Told) -> None:
    """Every extent has the scales of the same samples."""
    rng, node = np.random.default_rng(0), helper.make_node
    weights = {"w0": rng.standard_normal((8, 12)).astype(np.float32), "w1": np.eye(12, 4, dtype=np.float32)}
    nodes = [node("MatMul", ["x", "w0"], ["m"]), node("Relu", ["m"], ["r"]), node("MatMul", ["r", "w1"], ["y"])]
    model = save(tmp_path / "net.onnx", nodes, weights, ["n", "seq", 8], ["n", "seq", 4])
    samples, out = data(tmp_path / "d.npz", 4, 5, 8), tmp_path / "out"
    options = ("--trials", 0, "--levels", "model", "--max-batch", 1, "--json", "--dim", "seq=1..6")
    code, text, errors = told("compile", model, "--out", out, "--precision", "int8", "--calibrate", samples, *options)
    assert code == 0, errors
    assert json.loads(text)["int8_layers"] == 2
    (found,) = veltair.measure_accuracy(out, model, dict(np.load(data(tmp_path / "e.npz", 4, 3, 8))))
    assert found.cosine > 0.99
