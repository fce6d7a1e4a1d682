"""A mix of models served by this daemon under several policies and by its peers behind the same front end.

    python bench/mix.py SCENARIO.toml [--config demo/serve.toml] [--models demo/models] [--policies a,b] [--seeds 3]

For each stack in turn: start it, search the greatest load at which every tenant keeps its percentile within target
(`veltair load --find-peak`, over gRPC), stop it. The load generator shares the cores with all of them alike. Writes
`bench/results/mix-<scenario>.json` after each stack and goes on from there when it is run again; `--again` starts over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
CLI = [sys.executable, "-m", "veltair.cli"]


def stacks(args: argparse.Namespace) -> dict[str, list[str]]:
    """Command of each stack by its name. A peer gets what its makers advise for low latency and for throughput."""
    cores = len(os.sched_getaffinity(0))
    peers = [sys.executable, str(ROOT / "bench" / "peers.py"), str(args.config), str(args.models), "--engine"]

    def peer(engine: str, threads: int, at_once: int, hint: str = "latency") -> list[str]:
        return [*peers, engine, "--threads", str(threads), "--at-once", str(at_once), "--hint", hint]

    ours = {f"veltair, {policy}": [policy] for policy in args.policies.split(",") if policy}
    theirs = {
        "OpenVINO, latency hint, one at a time": peer("openvino", cores, 1),
        f"OpenVINO, one thread each, {cores} at a time": peer("openvino", 1, cores),
        f"OpenVINO, throughput hint, {cores} at a time": peer("openvino", cores, cores, "throughput"),
        f"ONNX Runtime, {cores} threads, one at a time": peer("onnxruntime", cores, 1),
        f"ONNX Runtime, one thread each, {cores} at a time": peer("onnxruntime", 1, cores),
    }
    return ours | theirs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.toml")
    parser.add_argument("--config", type=Path, default=ROOT / "demo" / "serve.toml")
    parser.add_argument("--models", type=Path, default=ROOT / "demo" / "models")
    parser.add_argument("--policies", default="veltair,veltair-full,fcfs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    path = RESULTS / f"mix-{args.scenario.stem}.json"
    found: dict[str, Any] = {}
    if path.exists() and not args.again:
        found = json.loads(path.read_text("utf-8"))
    for name, command in stacks(args).items():
        if name in found:
            continue
        print(f"== {name}", flush=True)
        found[name] = peak(command, args.scenario.read_text("utf-8"), args.config, args.seeds)
        path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(table(found))
    return 0


def peak(command: Sequence[str], scenario: str, config: Path, seeds: int) -> dict[str, Any]:
    """The report of the search.

    Args:
        command: a peer's, or the name of a policy alone.
        scenario: text of a scenario file; its target is put in.
        config: of the daemon.
    """
    with tempfile.TemporaryDirectory(prefix="veltair-mix-") as folder, _daemon(command, config) as address:
        path = Path(folder) / "scenario.toml"
        path.write_text(re.sub(r"(?m)^target = .*", f'target = "grpc://{address}"', scenario, count=1), "utf-8")
        load = [*CLI, "load", str(path), "--find-peak", "--seeds", str(seeds), "--json"]
        done = subprocess.run(load, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@contextmanager
def _daemon(command: Sequence[str], config: Path) -> Iterator[str]:
    """Its gRPC address."""
    own = config.with_name(".mix.toml")
    if len(command) == 1:
        text = config.read_text("utf-8")
        own.write_text(text.replace("[server]", f'[server]\npolicy = "{command[0]}"', 1), "utf-8")
        command = [*CLI, "serve", str(own), "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(command)} did not start (exit code {process.wait()})")
        yield json.loads(line)["grpc"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
        own.unlink(missing_ok=True)


def table(found: dict[str, Any]) -> str:
    """Markdown."""
    peers = [report["peak_qps"] or 0.0 for name, report in found.items() if not name.startswith("veltair")]
    best = max(peers, default=0.0)
    lines = ["| stack | peak QPS | over the best peer | p95 ms by tenant |", "| --- | --- | --- | --- |"]
    for name, report in found.items():
        qps = report["peak_qps"] or 0.0  # none: some tenant misses its target even when almost idle
        over = f"{qps / best:.2f}x" if best else ""
        tails = ", ".join(f"{t['name']} {t['p95_ms']:.1f}" for t in report["tenants"] if t["p95_ms"] is not None)
        lines.append(f"| {name} | {qps:.0f} | {over} | {tails} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
