"""`import veltair` is cheap, and has all that it names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import veltair

HEAVY = ("tvm", "onnx", "onnxruntime", "fastapi", "grpc", "matplotlib", "numpy")


def test_every_name_is_there() -> None:
    assert all(getattr(veltair, name) is not None for name in veltair.__all__)
    assert set(veltair.__all__) <= set(dir(veltair))
    assert veltair.__version__ == "0.1.0"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = veltair.nothing


def test_importing_it_loads_nothing_heavy() -> None:
    code = f"import sys, veltair; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
