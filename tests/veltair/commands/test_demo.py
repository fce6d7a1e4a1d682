"""How the demo ends where a person watches, and what it says to a program."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from running_daemon import until

from veltair.commands.demo import MODELS, stay


def test_it_stays_until_the_time_is_over_or_the_daemon_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as daemon:
        stay(daemon, 0.01)
        assert daemon.poll() is None
        assert daemon.stdin is not None
        daemon.stdin.write(b"\n")
        daemon.stdin.close()
        stay(daemon, 60)
        assert daemon.returncode == 0


CHILD = """
import signal, sys
def tidy(number, frame):
    print("tidied up", flush=True)
    sys.exit(3)
signal.signal(signal.SIGTERM, tidy)
print("waits", flush=True)
while True:  # signal.pause() would miss a signal that came before it
    pass
"""
PARENT = """
import sys
from veltair.commands.demo import run_to_its_end
from veltair.ending_signals import tidied_up
with tidied_up():
    run_to_its_end([sys.executable, "-c", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_it_runs_tidies_up_when_a_signal_ends_it(number: signal.Signals) -> None:
    command = [sys.executable, "-c", PARENT, CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == "tidied up\n"


@pytest.mark.slow
def test_the_daemon_ends_however_the_demo_does(artifacts: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "veltair.cli", "demo", "--dir", tmp_path]
    command += ["--scenario", scenario_of(artifacts, tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (line := process.stdout.readline()).startswith("dashboard: http://"):
            assert line
        process.kill()
        process.stdout.read()  # to its end: the daemon's output goes elsewhere, that of the load comes here
    address = line.split()[1].removeprefix("http://").partition("/")[0]
    until("the daemon to end", lambda: not listens(address))


def listens(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


def scenario_of(artifacts: Path, folder: Path) -> Path:
    """A scenario for the demo, whose models are there already: small ones under the names of its own."""
    text = "[load]\ntarget = 'grpc://127.0.0.1:1'\nduration_s = 1.0\nwarmup_s = 0.1\n"
    (folder / "models").mkdir()
    (folder / "artifacts").mkdir()
    for name in MODELS:
        (folder / "models" / f"{name}.onnx").touch()
        (folder / "artifacts" / name).symlink_to(artifacts / "mlp")
        text += f"[[tenants]]\nname = '{name}'\nqps = 10.0\ntarget_ms = 1000.0\n"
    (folder / "own.toml").write_text(text)
    return folder / "own.toml"


@pytest.mark.slow
def test_its_result_is_one_object_of_json(artifacts: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "veltair.cli", "demo", "--dir", tmp_path, "--json"]
    command += ["--scenario", scenario_of(artifacts, tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    facts = json.loads(line)
    assert facts["ok"] and facts["daemon_exit_code"] == 0
    assert facts["artifacts"] == {name: str(tmp_path / "artifacts" / name) for name in MODELS}
    assert Path(facts["config"]).is_file()
    assert {tenant["name"]: tenant["qps"] > 0 for tenant in facts["load"]["tenants"]} == dict.fromkeys(MODELS, True)
    assert "dashboard: http://" in done.stderr and "what to look at next" in done.stderr
