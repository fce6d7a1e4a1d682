"""Settings of the whole suite, which runs in one process with both halves of TVM: the compiler is loaded first.

Hypothesis draws new examples on a developer's machine and the same ones every time in CI; no test has a time limit.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tvm  # noqa: F401  the server loads the runtime library alone, which would hide the compiler from other tests
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=bool(os.environ.get("CI"))
)
settings.load_profile("suite")

# Background jobs of a shell ignore interrupts, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the artifacts of build_artifacts.py: real kernels, built once a session in a process of its own."""
    folder = tmp_path_factory.mktemp("artifacts")
    script = Path(__file__).parent / "server" / "build_artifacts.py"
    subprocess.run([sys.executable, script, folder], check=True, env=os.environ | {"TVM_USE_RUNTIME_LIB": "0"})
    return folder
