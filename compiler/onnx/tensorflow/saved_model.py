"""TensorFlow's SavedModel folders: converted to ONNX by tf2onnx, in a process of its own.

TensorFlow is no dependency of this project: it may lie in an environment of its own, whose Python an option or the
environment variable `VELTAIR_TENSORFLOW_PYTHON` names. String operators become those of onnxruntime-extensions
(`ai.onnx.contrib`), which `features.from_onnx` reads.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from veltair.errors import ModelError
from veltair.machine.scratch import ScratchFolder

PYTHON_VARIABLE = "VELTAIR_TENSORFLOW_PYTHON"
FILES = ("saved_model.pb", "saved_model.pbtxt")
OPSET = 17
NEEDED = ("tensorflow", "tf2onnx")
CONVERSION = Path(__file__).with_name("conversion.py")
INSTALL = (
    "python3 -m venv tensorflow-env && tensorflow-env/bin/pip install tensorflow-cpu tf2onnx, then --tensorflow-python "
    f"tensorflow-env/bin/python or {PYTHON_VARIABLE}=tensorflow-env/bin/python"
)
SHOWN_BYTES = 400  # of what a converter that failed said last


def is_saved_model(path: Path) -> bool:
    """Whether a path is the folder of a SavedModel."""
    return any((path / name).is_file() for name in FILES)


@contextmanager
def as_onnx(path: Path, python: str | None = None) -> Iterator[Path]:
    """The path of an ONNX file: the given one, or a SavedModel's while the context lasts, with the folder's name.

    `python`: one that has TensorFlow and tf2onnx (see `convert_saved_model`). Raises ModelError.
    """
    if not is_saved_model(path):
        yield path
        return
    with ScratchFolder("tensorflow") as folder:
        yield convert_saved_model(path, folder, python)


def convert_saved_model(path: Path, folder: Path, python: str | None = None) -> Path:
    """Writes the default signature of a SavedModel into the folder as an ONNX file of its name.

    `python`: one that has TensorFlow and tf2onnx; default: that of the environment variable, else this one. A
    SavedModel is a program that TensorFlow runs parts of: convert those alone that you trust. Raises ModelError.
    """
    chosen = python or os.environ.get(PYTHON_VARIABLE) or ""
    if not chosen and not all(map(importlib.util.find_spec, NEEDED)):
        raise ModelError(f"{path}: a TensorFlow SavedModel needs a Python with TensorFlow and tf2onnx: {INSTALL}")
    if os.sep in chosen:
        chosen = str(Path(chosen).absolute())  # links stay: an environment's Python is one
    out = folder / f"{path.resolve().name}.onnx"
    command = [chosen or sys.executable, str(CONVERSION), "--saved-model", str(path.resolve())]
    command += ["--output", str(out), "--opset", str(OPSET), "--extra_opset", "ai.onnx.contrib:1"]
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,  # where no file shadows a module
            env=os.environ | quiet,
            check=False,
        )
    except OSError as error:
        raise ModelError(f"{path}: cannot run {command[0]}: {error.strerror}; expected: {INSTALL}") from None
    said = done.stdout.decode("utf-8", "replace")
    missing = (f"{what} '{name}" for name in NEEDED for what in ("No module named", "module specification for"))
    if done.returncode and any(text in said for text in missing):
        raise ModelError(f"{path}: {command[0]} has no TensorFlow with tf2onnx: {INSTALL}")
    if done.returncode or not out.is_file():
        raise ModelError(f"{path}: tf2onnx cannot convert it: {_last_words(said)}")
    return out


def _last_words(said: str) -> str:
    """The end of what a process printed, in one line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " ".join(lines[-3:])[-SHOWN_BYTES:] or "it said nothing"
