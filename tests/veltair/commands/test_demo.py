"""How the demo ends where a person watches, and what it says to a program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_its_result_is_one_object_of_json(artifacts: Path, tmp_path: Path) -> None:
    """Models that are there already are not built again; these are small ones under the names of the demo's."""
    scenario = "[load]\ntarget = 'grpc://127.0.0.1:1'\nduration_s = 1.0\nwarmup_s = 0.1\n"
    for name in MODELS:
        (tmp_path / "models").mkdir(exist_ok=True)
        (tmp_path / "models" / f"{name}.onnx").touch()
        (tmp_path / "artifacts").mkdir(exist_ok=True)
        (tmp_path / "artifacts" / name).symlink_to(artifacts / "mlp")
        scenario += f"[[tenants]]\nname = '{name}'\nqps = 10.0\ntarget_ms = 1000.0\n"
    (tmp_path / "own.toml").write_text(scenario)
    command = [sys.executable, "-m", "veltair.cli", "demo", "--dir", tmp_path, "--json"]
    command += ["--scenario", tmp_path / "own.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    [line] = done.stdout.splitlines()
    facts = json.loads(line)
    assert facts["ok"] and facts["daemon_exit_code"] == 0
    assert facts["artifacts"] == {name: str(tmp_path / "artifacts" / name) for name in MODELS}
    assert Path(facts["config"]).is_file()
    assert {tenant["name"]: tenant["qps"] > 0 for tenant in facts["load"]["tenants"]} == dict.fromkeys(MODELS, True)
    assert "dashboard: http://" in done.stderr and "what to look at next" in done.stderr
