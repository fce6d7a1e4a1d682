"""How many of the networks that people bring compile, and agree with ONNX Runtime in every version.

    python -m bench.coverage --export-python PYTHON [--networks PATTERN,…] [--times] [--again]

Exports the networks of `networks.toml` with random weights by both exporters of PyTorch (or by skl2onnx) in a Python of
its own that has `requirements.txt` installed. Each file is compiled as a new user would, without a search, in a process
with limits of time and memory, and verified. Results are written after each network, so that an interrupted run
continues; `--again` runs what was run, and `--quick` compiles for small batches and does not keep how long that takes,
as on a machine that others use. Files that exist are not exported again; without `--export-python` none are.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from bench.coverage.trial import Limits, try_network
from bench.paths import DEMO, RESULTS, ROOT, result_path, write_whole
from veltair.machine.environment import describe_environment

RESULT = RESULTS / "coverage.json"
FOLDER = DEMO / "coverage"
NETWORKS = Path(__file__).with_name("networks.toml")
EXPORTERS = ("dynamo", "torchscript")
MOST_BYTES = 12 << 30  # of memory that a command may take


@dataclass(frozen=True, slots=True)
class Network:
    """A network of a family, as one exporter writes it."""

    family: str
    name: str
    facts: dict[str, Any]
    exporter: str

    @property
    def title(self) -> str:
        return f"{self.family}.{self.name}.{self.exporter}"


def main() -> int:
    args = _arguments()
    found: dict[str, Any] = {"networks": {}}
    if args.out.exists():
        found = json.loads(args.out.read_text("utf-8"))
    models = args.folder / "models"
    models.mkdir(parents=True, exist_ok=True)
    os.environ["VELTAIR_CACHE"] = str(args.folder / "cache")
    exporter = Exporter(args.export_python, models, args.seconds) if args.export_python else None
    for network in networks(args.networks.split(",")):
        done = found["networks"].get(network.title)
        if done and not args.again and ("times" in done or not args.times):
            continue
        path = models / f"{network.title}.onnx"
        if not path.exists():
            if exporter is None:
                continue
            if fault := exporter.export(network):
                print(f"{network.title}: not exported: {fault}", flush=True)
                found["networks"][network.title] = {"exported": False, "fault": fault}
                _write(args.out, found)
                continue
        limits = Limits(args.seconds, MOST_BYTES)
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            result = try_network(path, Path(folder, "artifact"), limits, quick=args.quick, times=args.times)
        print(f"{network.title}: {json.dumps(result)}", flush=True)
        found["networks"][network.title] = {"exported": True, **result}
        _write(args.out, found)
    if exporter:
        exporter.close()
    bad = [title for title, facts in found["networks"].items() if facts["exported"] and not facts.get("agrees")]
    print(f"{len(found['networks'])} networks, {len(bad)} of them fail: {', '.join(bad)}")
    return 1 if bad else 0


def networks(patterns: list[str]) -> Iterator[Network]:
    """Those of `networks.toml` whose title one of the patterns matches.

    >>> [network.exporter for network in networks(["*.resnet18.*"])]
    ['dynamo', 'torchscript']
    """
    for family, entries in tomllib.loads(NETWORKS.read_text("utf-8")).items():
        for name, facts in entries.items():
            for exporter in ("skl2onnx",) if family == "scikit-learn" else EXPORTERS:
                network = Network(family, name, facts, exporter)
                if any(fnmatch(network.title, pattern) for pattern in patterns):
                    yield network


class Exporter:
    """Asks a process of another Python to export one network after the other, and starts a new one where it dies."""

    def __init__(self, python: str, folder: Path, seconds: float) -> None:
        self._command = [python, "-m", "bench.coverage.exported", str(folder)]
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None

    def export(self, network: Network) -> str | None:
        """None, or why there is no file."""
        if self._process is None:
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            offline = os.environ | {"HF_HUB_OFFLINE": "1"}
            self._process = subprocess.Popen(self._command, text=True, cwd=ROOT, env=offline, **pipes)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended
            process.stdin.write(json.dumps([network.family, network.name, network.facts, network.exporter]) + "\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], self._seconds)
        answer = process.stdout.readline() if ready else ""
        if answer:
            text: str | None = json.loads(answer)
            return text
        if not ready:
            process.kill()
        code = process.wait()
        self.close()
        return f"the exporter ended with code {code}" if ready else f"takes over {self._seconds:g} s"

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            with suppress(BrokenPipeError):
                self._process.communicate()
            self._process = None


def _write(path: Path, found: dict[str, Any]) -> None:
    write_whole(path, json.dumps({"environment": asdict(describe_environment()), **found}, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.coverage", description="Which networks compile and agree.")
    parser.add_argument("--export-python", metavar="PYTHON", help="one that has bench/coverage/requirements.txt")
    parser.add_argument("--networks", default="*", metavar="PATTERN,…", help="of family.name.exporter (default: all)")
    parser.add_argument("--times", action="store_true", help="time them beside ONNX Runtime and OpenVINO as well")
    parser.add_argument("--quick", action="store_true", help="batches up to 3, modelled interference levels")
    parser.add_argument("--again", action="store_true", help="run what was run already")
    parser.add_argument("--seconds", type=float, default=600, help="that an export or a command may take")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for exported files; default: demo/coverage")
    parser.add_argument("--out", type=result_path, default=RESULT)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
