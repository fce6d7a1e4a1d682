"""SavedModel folders: recognised, converted in another process, and equal to TensorFlow as artifacts.

Tests against TensorFlow itself need VELTAIR_TENSORFLOW_PYTHON, a Python with tensorflow-cpu and tf2onnx.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from features.column_nets import CITY, STRING, model, node

import veltair
from veltair.compiler.onnx.tensorflow import saved_model
from veltair.compiler.onnx.tensorflow.saved_model import PYTHON_VARIABLE, as_onnx, convert_saved_model, is_saved_model
from veltair.errors import ModelError

MAKER = Path(__file__).with_name("tensorflow_models.py")
CONVERTER = """#!{python}
import shutil, sys
arguments = sys.argv[1:]
assert "tf2onnx" in open(arguments[0]).read()
given = dict(zip(arguments[1::2], arguments[2::2], strict=True))
assert given["--extra_opset"] == "ai.onnx.contrib:1" and given["--opset"] == "17"
{action}
"""


def folder_of(path: Path) -> Path:
    folder = path / "ranker"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"a graph")
    return folder


def converter(path: Path, action: str) -> str:
    """A stand-in for a Python with tf2onnx."""
    script = path / "python"
    script.write_text(CONVERTER.format(python=sys.executable, action=action), "utf-8")
    script.chmod(0o755)
    return str(script)


def test_a_saved_model_is_a_folder_with_its_graph(tmp_path: Path) -> None:
    assert is_saved_model(folder_of(tmp_path))
    assert not is_saved_model(tmp_path)
    assert not is_saved_model(tmp_path / "missing.onnx")


def test_another_path_stays_as_it_is(tmp_path: Path) -> None:
    with as_onnx(tmp_path / "model.onnx") as path:
        assert path == tmp_path / "model.onnx"


def test_a_converted_model_has_the_name_of_its_folder_while_it_is_used(tmp_path: Path) -> None:
    made = model(tmp_path / "made.onnx", [*CITY, node("Relu", ["city.rows"], "y")], {"city": (STRING, ["B"])}, ["y"])
    python = converter(tmp_path, f"shutil.copy({str(made)!r}, given['--output'])")
    with as_onnx(folder_of(tmp_path), python) as path:
        assert path.name == "ranker.onnx" and onnx.load(path).graph.output[0].name == "y"
    assert not path.exists()


def test_the_environment_names_a_python_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON_VARIABLE, converter(tmp_path, "open(given['--output'], 'w').close()"))
    assert convert_saved_model(folder_of(tmp_path), tmp_path).read_bytes() == b""


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("sys.exit('ValueError: no signature')", "ranker: tf2onnx cannot convert it: ValueError: no signature"),
        ("pass", "ranker: tf2onnx cannot convert it: it said nothing"),
        ("sys.exit(\"No module named 'tensorflow'\")", "has no TensorFlow with tf2onnx: python3 -m venv"),
    ],
)
def test_a_failed_conversion_says_why(action: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=says):
        convert_saved_model(folder_of(tmp_path), tmp_path, converter(tmp_path, action))


def test_without_tensorflow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(saved_model, "NEEDED", ("tensorflow", "no_such_package_anywhere"))
    with pytest.raises(ModelError, match="pip install tensorflow-cpu tf2onnx"):
        veltair.compile(folder_of(tmp_path), tmp_path / "artifact")
    with pytest.raises(ModelError, match=r"cannot run .*nowhere: No such file or directory"):
        convert_saved_model(tmp_path / "ranker", tmp_path, str(tmp_path / "nowhere"))


def test_a_relative_path_of_a_python_is_one_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    converter(tmp_path, "open(given['--output'], 'w').close()")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    assert convert_saved_model(folder_of(tmp_path), tmp_path / "out", "./python").name == "ranker.onnx"


@pytest.mark.parametrize("kind", ["dense", "hashed", "layers", "absent", "several", "crossed", "words", "characters"])
def test_an_artifact_of_a_saved_model_gives_what_tensorflow_gives(kind: str, tmp_path: Path) -> None:
    python = os.environ.get(PYTHON_VARIABLE)
    if python is None:
        pytest.skip(f"{PYTHON_VARIABLE} names no Python with tensorflow-cpu and tf2onnx")
    subprocess.run([python, str(MAKER), kind, str(tmp_path)], check=True)
    artifact = veltair.compile(
        tmp_path / kind, tmp_path / "artifact", trials=0, precision="fp32", levels="modelled", max_batch=8
    )
    assert artifact.manifest.model == kind
    with np.load(tmp_path / f"{kind}.npz") as values:
        stored = {name: values[name] for name in values.files}
    feeds = {
        name.removeprefix("in."): value.astype(object) if value.dtype.kind == "S" else value
        for name, value in stored.items()
        if name.startswith("in.")
    }
    with veltair.load(artifact, threads=1) as compiled:
        found = compiled(feeds)
    for name, output in found.items():
        np.testing.assert_allclose(output, stored[f"out.{name}"], rtol=1e-5, atol=1e-6)
