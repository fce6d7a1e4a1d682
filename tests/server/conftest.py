"""Real artifacts with real kernels, built once a session in a process of its own: this one loads no compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of build_artifacts.py."""
    folder = tmp_path_factory.mktemp("artifacts")
    script = Path(__file__).with_name("build_artifacts.py")
    subprocess.run([sys.executable, script, folder], check=True, env=os.environ | {"TVM_USE_RUNTIME_LIB": "0"})
    return folder
