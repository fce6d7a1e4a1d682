"""`veltair serve` and `veltair init` around a configuration: checked, written, hinted at."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from veltair.cli import COMMANDS, main
from veltair.config import ServeConfig, read_config

pytestmark = pytest.mark.slow


def test_a_written_configuration_is_right_and_says_every_key(
    artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", str(artifacts / "mlp"), str(artifacts / "spin")]) == 0
    text = (tmp_path / "serve.toml").read_text()
    config = read_config(tmp_path / "serve.toml")
    assert [tenant.name for tenant in config.tenants] == ["mlp", "spin"]
    assert config.server == ServeConfig().server
    assert main(["serve", "--check", "serve.toml"]) == 0
    assert "mlp (fp32)" in capsys.readouterr().out
    # Each key that has a default may be uncommented as it stands.
    server = text.split("[server]")[1].split("[server.limits]")[0].rsplit("#", 1)[0]
    defaults = re.sub(r"(?m)^# (?=\w+ = [^…\n]*(  #|$))", "", server)
    raw = tomllib.loads(f"[server]{defaults}")["server"]
    assert len(raw) > 15
    assert main(["init", str(artifacts / "mlp")]) == 2
    assert capsys.readouterr().err == "veltair init: serve.toml: File exists\n"


def said_at_start(*arguments: str | Path) -> str:
    """All that `veltair serve` prints, until it has been told to end."""
    command = [sys.executable, "-m", "veltair.cli", "serve", *arguments, "--attached"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as daemon:
        assert daemon.stdout is not None and daemon.stdin is not None
        lines = [daemon.stdout.readline().decode() for _ in range(4)]
        daemon.stdin.close()
        text = "".join(lines) + daemon.stdout.read().decode()
    assert daemon.returncode == 0
    return text


ANYWHERE = ("--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")


def test_artifacts_without_a_configuration(artifacts: Path) -> None:
    text = said_at_start(artifacts / "mlp", *ANYWHERE)
    assert "veltair serves mlp" in text and "/admin" in text
    assert "input   x  float32 (batch, 16)" in text and "veltair query grpc://127.0.0.1:" in text


@pytest.mark.parametrize("count", [3, 4])
def test_few_models_get_snippets_each_and_of_many_the_first(artifacts: Path, tmp_path: Path, count: int) -> None:
    config = '[server]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n'
    names = [f"m{number}" for number in range(count)]
    for name in names:
        config += f'[[tenants]]\nname = "{name}"\nartifact = "{artifacts / "mlp"}"\n'
    (tmp_path / "serve.toml").write_text(config)
    text = said_at_start(tmp_path / "serve.toml")
    asked = re.findall(r"(?m)^veltair query grpc://127\.0\.0\.1:\d+ (\w+) --random$", text)
    assert asked == (names if count == 3 else ["m0", "NAME"])
    assert ("veltair inspect ARTIFACT" in text) == (count == 4)
    assert text.count("curl -s") == (3 if count == 3 else 1)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["serve", "{tmp}/load.toml"], "a file with [load] is a scenario of `veltair load` or `veltair simulate`"),
        (["load", "{tmp}/simulation.toml"], "a scenario without an address is one of `veltair simulate`"),
        (["simulate", "{tmp}/load.toml"], "a scenario with load.target is one of `veltair load`"),
        (["simulate", "{tmp}/serve.toml"], "a file with [server] is a configuration of `veltair serve`"),
        (["serve", "--check", "{tmp}/typo.toml"], "unknown field `quue_slots`; did you mean `queue_slots`?"),
        (["serve", "{tmp}", "{tmp}"], "no model artifact there"),
        (["serve"], "tenants: expected at least one, or server.repository"),
        (["serve", "{tmp}/two\nlines"], "two\\nlines: cannot be read"),
        (["load", "{tmp}/two\nlines"], "two\\nlines: no such file"),
        (["doctor", "{tmp}/two\nlines"], "two\\nlines: cannot be read"),
        (["serve", "--check", "--repository", "{tmp}/none"], "none: No such file or directory"),
    ],
)
def test_the_wrong_file_says_which_command_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    tenant = '[[tenants]]\nname = "m"\nqps = 5.0\ntarget_ms = 5.0\n'
    (tmp_path / "load.toml").write_text(f'[load]\ntarget = "grpc://127.0.0.1:1"\n{tenant}')
    (tmp_path / "simulation.toml").write_text(f"[load]\nqueries = 100\n{tenant}")
    (tmp_path / "serve.toml").write_text('[server]\n[[tenants]]\nname = "m"\nartifact = "m"\n')
    (tmp_path / "typo.toml").write_text('[server]\nquue_slots = 3\n[[tenants]]\nname = "m"\nartifact = "m"\n')
    assert main([argument.replace("{tmp}", str(tmp_path)) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and expected in captured.err and captured.err.count("\n") == 1, captured.err


def test_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    steps = capsys.readouterr().out
    assert all(line.split()[1] in COMMANDS for line in steps.splitlines() if line.startswith("  veltair "))
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out == "veltair 0.1.0\n"


def test_a_check_reads_the_repository_and_each_version(
    artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in ("1", "2"):
        shutil.copytree(artifacts / "mlp", tmp_path / "models" / "mlp" / version)
    (tmp_path / "models" / "mlp" / "tenant.toml").write_text('versions = "all"\n')
    command = ["serve", "--check", "--repository", str(tmp_path / "models")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "mlp 1:" in said and "mlp 2:" in said and "the configuration is right" in said
    (tmp_path / "models" / "mlp" / "2" / "manifest.json").write_text("{}")
    assert main(command) == 2
    assert "mlp/2" in capsys.readouterr().err
    (tmp_path / "models" / "mlp" / "tenant.toml").write_text("qos_ms = 0\n")
    assert main(command) == 2
    assert "tenant.toml: qos_ms" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_a_terminal_will_do(artifacts: Path, encoding: str) -> None:
    command = [sys.executable, "-m", "veltair.cli", "inspect", str(artifacts / "mlp")]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, b"") and "dense2" in ended.stdout.decode(encoding)


def test_a_check_for_programs(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--check", str(artifacts / "mlp"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tenants"].keys() == {"mlp"}
