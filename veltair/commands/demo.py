"""`veltair demo`: builds and compiles three models, serves them together, loads them and shows the result."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from veltair.errors import VeltairError
from veltair.machine.scratch import ScratchFolder
from veltair.scenarios import find_scenario

MODELS = ("resnet50", "mobilenet_v2", "dlrm")
READY_S = 120.0  # for a daemon to load its models
TIDY_S = 2.0  # for a command that a signal has ended
LOOK_S = 60.0  # that the dashboard stays after the load, where a person watches


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where models and artifacts go (default: demo)")
    parser.add_argument("--scenario", default="demo", help="a file, or the name of one of ours (default: demo)")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object; all else goes to stderr")
    parser.epilog = """\
examples:
  veltair demo
  veltair demo --dir /tmp/demo
  veltair demo --json > demo.json"""


def run(args: argparse.Namespace) -> int:
    scenario = find_scenario(args.scenario)
    console = Console(stderr=args.json)
    folder: Path = args.dir.resolve()
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        model = folder / "models" / f"{name}.onnx"
        if not model.exists():
            console.rule(f"[bold]build {name}", align="left")
            _veltair(console, "zoo", name, "--out", str(model))
        artifact = folder / "artifacts" / name
        if not artifact.exists():
            console.rule(f"[bold]compile {name}", align="left")
            # A CPU without shipped records would have a minute of search in front of half a minute of load.
            _veltair(console, "compile", str(model), "--out", str(artifact), "--name", name, "--trials", "0")
    config = folder / "serve.toml"
    config.write_text(_config(folder), "utf-8")
    console.rule("[bold]serve and load", align="left")
    return _serve_and_load(config, scenario, folder, console, as_json=args.json)


def _config(folder: Path) -> str:
    tenants = [f'[[tenants]]\nname = "{name}"\nartifact = "artifacts/{name}"\n' for name in MODELS]
    return '[server]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n\n' + "\n".join(tenants)


def _serve_and_load(config: Path, scenario: Path, folder: Path, console: Console, *, as_json: bool) -> int:
    log = folder / "daemon.log"
    command = [sys.executable, "-m", "veltair.cli", "serve", str(config), "--json", "--attached"]
    with log.open("wb") as errors:
        daemon = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
    assert daemon.stdin is not None and daemon.stdout is not None
    try:
        line = daemon.stdout.readline()
        if not line:
            raise VeltairError(f"the daemon did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")
        ready = json.loads(line)
        console.print(f"dashboard: [link]http://{ready['http']}/admin[/link]  (while the load runs)")
        text = re.sub(r"(?m)^target\s*=.*$", f'target = "grpc://{ready["grpc"]}"', scenario.read_text("utf-8"))
        with ScratchFolder("demo") as scratch:
            here = scratch / "demo.toml"
            here.write_text(text, "utf-8")
            code, report = _load(here, as_json=as_json)
        _say_next(console, config)
        if console.is_terminal and not as_json:
            console.print(f"the dashboard stays for a minute: http://{ready['http']}/admin  (Ctrl-C ends it)")
            stay(daemon, LOOK_S)
    finally:
        daemon.stdin.close()  # it is attached, so that it drains however this command ends
        stopped = daemon.wait(READY_S)
    console.print("the daemon drained and stopped" if stopped == 0 else f"[red]the daemon ended with code {stopped}")
    if as_json:
        artifacts = {name: str(folder / "artifacts" / name) for name in MODELS}
        facts = {"config": str(config), "artifacts": artifacts, "load": report, "daemon_exit_code": stopped}
        print(json.dumps({"ok": not (code or stopped)} | facts))
    return code or stopped


def _load(scenario: Path, *, as_json: bool) -> tuple[int, Any]:
    """The exit code of `veltair load`, and with `as_json` its report; None where it gave none."""
    command = [sys.executable, "-m", "veltair.cli", "load", str(scenario)]
    if not as_json:
        return run_to_its_end(command)[0], None
    code, output = run_to_its_end([*command, "--json"], subprocess.PIPE)
    return code, json.loads(output) if output else None


def _say_next(console: Console, config: Path) -> None:
    file = os.path.relpath(config)
    artifacts = os.path.relpath(config.parent / "artifacts")
    console.print("\nwhat to look at next:", markup=False)
    ideas = {
        f"veltair serve {file}": "serve the three models again",
        f"veltair inspect {artifacts}/resnet50": "the layers and code versions of one",
        "veltair compile MODEL.onnx --out DIR": "a model of your own",
    }
    width = max(map(len, ideas))
    for command, why in ideas.items():
        console.print(f"  {command:<{width}}  {why}", markup=False, highlight=False, soft_wrap=True)


def stay(daemon: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait until the time is over, the daemon has ended, or Ctrl-C, which the daemon gets from the terminal as well."""
    try:
        daemon.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    except KeyboardInterrupt:
        daemon.wait(READY_S)


def run_to_its_end(command: Sequence[str], stdout: Any = None) -> tuple[int, bytes | None]:
    """The exit code of a command and its output. Where a signal ends this process the command is left time to tidy up:
    it may have the signal too, as from a terminal; if not it is told to end.
    """
    with subprocess.Popen(command, stdout=stdout) as child:
        try:
            output, _ = child.communicate()
        except BaseException:
            for end in (child.terminate, child.kill):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(TIDY_S)
                    break
                end()
            raise
        return child.returncode, output


def _veltair(output: Console, *arguments: str) -> None:
    """Run a command whose results go where those of the demo do not: its own result is one object of JSON."""
    command = [sys.executable, "-m", "veltair.cli", *arguments]
    code, _ = run_to_its_end(command, sys.stderr if output.stderr else None)
    if code:
        raise VeltairError(f"veltair {' '.join(arguments)} ended with code {code}")
