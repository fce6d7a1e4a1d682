"""The daemon in a name space of mounts where the root file system is read-only, as containers have it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from running_daemon import SERVE
from running_engine import WAIT_S

ALONE = ["unshare", "--user", "--map-root-user", "--mount"]
READ_ONLY = 'mount --make-rprivate / && mount -o remount,bind,ro / && ! touch "$0" 2>/dev/null && exec "$@"'


def may_be_alone(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return not subprocess.run([*ALONE, "sh", "-c", READ_ONLY, folder / "x", "true"], capture_output=True).returncode


@pytest.mark.slow
def test_the_daemon_writes_nothing(artifacts: Path, tmp_path: Path) -> None:
    """Neither in /tmp nor anywhere else on that file system. The model is a link, as in deploy/kserve."""
    if not may_be_alone(tmp_path):
        pytest.skip("this system gives no name space of mounts to users (unshare --user --mount)")
    models = tmp_path / "models"
    models.mkdir()
    (models / "linked").symlink_to(artifacts / "mlp")
    where = ["--repository", str(models), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
    command = [sys.executable, "-c", SERVE, *where, "--json", "--log-format", "json"]
    shared_before = set(Path("/dev/shm").iterdir())
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*ALONE, "sh", "-c", READ_ONLY, tmp_path / "x", *command],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, (tmp_path / "log").read_text()
        x = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": [0.5] * 16}
        url = f"http://{json.loads(line)['http']}/v2/models/linked/infer"
        with urllib.request.urlopen(url, data=json.dumps({"inputs": [x]}).encode(), timeout=WAIT_S) as answer:
            assert json.load(answer)["outputs"]
        mine = {path for path in set(Path("/dev/shm").iterdir()) - shared_before if f"{process.pid}" in path.name}
        assert mine == set()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
