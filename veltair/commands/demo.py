"""`veltair demo`: builds and compiles three models, serves them together, loads them and shows the result."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from veltair.errors import VeltairError
from veltair.scenarios import find_scenario

MODELS = ("resnet50", "mobilenet_v2", "dlrm")
READY_S = 120.0  # for a daemon to load its models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, default=Path("demo"), help="where models and artifacts go (default: demo)")
    parser.add_argument("--scenario", default="demo", help="a file, or the name of one of ours (default: demo)")
    parser.epilog = """\
examples:
  veltair demo
  veltair demo --dir /tmp/demo"""


def run(args: argparse.Namespace) -> int:
    scenario = find_scenario(args.scenario)
    console = Console()
    folder: Path = args.dir.resolve()
    (folder / "models").mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        model = folder / "models" / f"{name}.onnx"
        if not model.exists():
            console.rule(f"[bold]build {name}", align="left")
            _veltair("zoo", name, "--out", str(model))
        artifact = folder / "artifacts" / name
        if not artifact.exists():
            console.rule(f"[bold]compile {name}", align="left")
            _veltair("compile", str(model), "--out", str(artifact), "--name", name)
    config = folder / "serve.toml"
    config.write_text(_config(folder), "utf-8")
    console.rule("[bold]serve and load", align="left")
    return _serve_and_load(config, scenario, folder, console)


def _config(folder: Path) -> str:
    tenants = [f'[[tenants]]\nname = "{name}"\nartifact = "artifacts/{name}"\n' for name in MODELS]
    return '[server]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n\n' + "\n".join(tenants)


def _serve_and_load(config: Path, scenario: Path, folder: Path, console: Console) -> int:
    log = folder / "daemon.log"
    with log.open("wb") as errors:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "veltair.cli", "serve", str(config), "--json"], stdout=subprocess.PIPE, stderr=errors
        )
    try:
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        if not line:
            raise VeltairError(f"the daemon did not start:\n{log.read_text('utf-8', 'replace')[-2000:]}")
        ready = json.loads(line)
        console.print(f"dashboard: [link]http://{ready['http']}/admin[/link]  (while the load runs)")
        text = re.sub(r"(?m)^target\s*=.*$", f'target = "grpc://{ready["grpc"]}"', scenario.read_text("utf-8"))
        with tempfile.TemporaryDirectory() as scratch:
            here = Path(scratch) / "demo.toml"
            here.write_text(text, "utf-8")
            code = subprocess.run([sys.executable, "-m", "veltair.cli", "load", str(here)], check=False).returncode
        console.print(
            f"dashboard: http://{ready['http']}/admin; serve it again: veltair serve {os.path.relpath(config)}"
        )
    finally:
        daemon.send_signal(signal.SIGTERM)
        stopped = daemon.wait(READY_S)
    console.print("the daemon drained and stopped" if stopped == 0 else f"[red]the daemon ended with code {stopped}")
    return code or stopped


def _veltair(*arguments: str) -> None:
    code = subprocess.run([sys.executable, "-m", "veltair.cli", *arguments], check=False).returncode
    if code:
        raise VeltairError(f"veltair {' '.join(arguments)} ended with code {code}")
