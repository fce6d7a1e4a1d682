"""Daemons that cannot start: one line says why."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from running_daemon import SERVE, configuration
from running_engine import WAIT_S

pytestmark = pytest.mark.slow

# What is served, options of the server, what the shell limits, exit code, and what the last line says.
STARTS: dict[str, tuple[tuple[str, ...], dict[str, object], str, int, str]] = {
    "path": (("mlp",), {"event_log": "log"}, "", 2, "server.event_log: expected a path in UTF-8"),
    "more models than there may be": (
        *(("mlp", "spin"), {"max_models": 1}, "", 2),
        "1 models are served, and no more than that (server.max_models)",
    ),
    "few descriptors": (("mlp",), {}, "ulimit -n 64", 2, "expected a limit of at least 288 open files, and it is 64"),
    "little memory": (  # 1,024 slots of 64 MB are mapped
        *(("words",), {"queue_slots": 1024}, "ulimit -v 8000000", 1),
        "the engine does not start: [Errno 12] Cannot allocate memory",
    ),
}


@pytest.mark.parametrize("what", STARTS)
def test_a_start_that_cannot_be_ends_in_one_line(
    rounds: Callable[..., range], artifacts: Path, tmp_path: Path, what: str
) -> None:
    """A configuration that cannot be served, or a system that gives too little: one line says so, and no traceback."""
    names, options, limit, code, says = STARTS[what]
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")) if what == "path" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "serve.toml").write_text(configuration(artifacts, *names, **options))
    serve = [sys.executable, "-c", SERVE, str(folder / "serve.toml")]
    for _ in rounds(quick=1, full=10):
        command = ["sh", "-c", f'{limit or "true"} && exec "$@"', "sh", *serve]
        ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=WAIT_S)
        assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
        assert says in ended.stderr.splitlines()[-1]
        assert "Traceback" not in ended.stderr
