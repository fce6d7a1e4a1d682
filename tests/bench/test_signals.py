"""Signals to the programs of `bench`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
try:
    print("waits", flush=True)
    while True:  # signal.pause() would miss a signal that came before it
        pass
finally:
    print("tidied up", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_program_tidies_up_and_shows_no_traceback(tmp_path: Path, number: signal.Signals) -> None:
    package = tmp_path / "bench"
    package.mkdir()
    (package / "__init__.py").write_text((ROOT / "bench" / "__init__.py").read_text())
    (package / "waits.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "bench.waits"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        process.send_signal(number)
        said, errors = process.communicate(timeout=60)
    shown = {signal.SIGINT: "interrupted\n"}.get(number, "")
    code = -number if number == signal.SIGINT else 128 + number  # Python ends itself by SIGINT, which shells call 130
    assert (process.returncode, said, errors) == (code, "tidied up\n", shown)
