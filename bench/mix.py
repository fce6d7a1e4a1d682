"""A mix of models served by this daemon under several policies and by its peers behind the same front end.

    python bench/mix.py SCENARIO.toml [--policies a,b] [--rounds 3] [--percentiles 0.95,0.99] [--shared-memory]

The scenario's tenants name models of the zoo or of the onnx package's `light_*` networks; they are built and compiled
into demo/mix first. Then, in every round, each stack in turn: start it, search the greatest load at which every tenant
keeps its percentile within target (`veltair load --find-peak`, over gRPC), stop it. The load generator shares the cores
with all of them alike. Writes `bench/results/mix-<scenario>.json` after each search and goes on from there when it is
run again; `--again` starts over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import onnx
from daemon import CLI, configuration, running, serve

from veltair.machine.environment import describe_environment
from veltair.zoo.models import RECOMMENDERS, ZOO
from veltair.zoo.recommendation.table_sizes import most_rows

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
FOLDER = ROOT / "demo" / "mix"
TABLE_BYTES = 1 << 30  # of a model: each peer's session holds them as well


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.toml")
    parser.add_argument("--policies", default="veltair,veltair-full,fcfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percentiles", default="0.95,0.99")
    parser.add_argument("--seconds", type=float, default=5.0, help="that each load of a search is held")
    parser.add_argument("--stacks", default="", help="only those with this in their names")
    parser.add_argument("--shared-memory", action="store_true", help="of every stack: queries name their tensors")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of this machine's results")
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args()
    path = args.results / f"mix-{args.scenario.stem}{'-shared' * args.shared_memory}.json"
    found: dict[str, Any] = {"environment": asdict(describe_environment()), "searches": []}
    if path.exists() and not args.again:
        found = json.loads(path.read_text("utf-8"))
    done = {(s["stack"], s["percentile"], s["round"]) for s in found["searches"]}
    scenario = args.scenario.read_text("utf-8")
    if args.shared_memory:
        scenario = scenario.replace("[load]", "[load]\nshared_memory = true", 1)
    config = prepare(args.scenario)
    for number in range(1, args.rounds + 1):
        for percentile in map(float, args.percentiles.split(",")):
            for name, command in stacks(config, args.policies).items():
                if (name, percentile, number) in done or args.stacks not in name:
                    continue
                print(f"== round {number}, {percentile:.0%}: {name}", flush=True)
                report = peak(command, asking(scenario, percentile, number, args.seconds), config)
                found["searches"].append({"stack": name, "percentile": percentile, "round": number, **report})
                path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(table(found))
    return 0


def prepare(scenario: Path, precision: str = "auto") -> Path:
    """The daemon's configuration for a scenario's tenants, its models built and compiled where they are not yet.

    Artifacts are kept in demo/mix by precision.
    """
    (FOLDER / "models").mkdir(parents=True, exist_ok=True)
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    tenants = []
    for tenant in tomllib.loads(scenario.read_text("utf-8"))["tenants"]:
        name = tenant["name"]
        model, artifact = FOLDER / "models" / f"{name}.onnx", FOLDER / precision / name
        if not model.exists():
            if name in ZOO:
                subprocess.run([*CLI, "zoo", name, "--out", str(model), *zoo_rows(name)], check=True)
            else:
                shutil.copy(light / f"{name}.onnx", model)
        if not artifact.exists():
            options = ["--out", str(artifact), "--name", name, "--precision", precision]
            subprocess.run([*CLI, "compile", str(model), *options], check=True)
        tenants.append((name, artifact, tenant["target_ms"]))
    config = FOLDER / f"{scenario.stem}.toml"
    config.write_text(configuration(tenants), "utf-8")
    return config


def zoo_rows(name: str) -> list[str]:
    """Options for `veltair zoo`: tables of a recommendation model are cut to `TABLE_BYTES`."""
    recommender = RECOMMENDERS.get(name)
    return [] if recommender is None else ["--rows", str(most_rows(recommender.tables, TABLE_BYTES))]


def asking(scenario: str, percentile: float, seed: int, duration_s: float) -> str:
    """The text of a scenario with this percentile for all tenants, this seed and duration."""
    text = re.sub(r"(?m)^(percentile|seed|duration_s) *=.*\n", "", scenario)
    text = text.replace("[[tenants]]", f"[[tenants]]\npercentile = {percentile}")
    return text.replace("[load]", f"[load]\nseed = {seed}\nduration_s = {duration_s}", 1)


def stacks(config: Path, policies: str) -> dict[str, list[str]]:
    """Command of each stack by its name. A peer gets what its makers advise for low latency and for throughput."""
    cores = len(os.sched_getaffinity(0))
    peers = [sys.executable, str(ROOT / "bench" / "peers.py"), str(config), str(FOLDER / "models"), "--engine"]

    def peer(engine: str, threads: int, at_once: int, hint: str = "latency") -> list[str]:
        return [*peers, engine, "--threads", str(threads), "--at-once", str(at_once), "--hint", hint]

    ours = {f"veltair, {policy}": [policy] for policy in policies.split(",") if policy}
    theirs = {
        "OpenVINO, latency hint, one at a time": peer("openvino", cores, 1),
        f"OpenVINO, one thread each, {cores} at a time": peer("openvino", 1, cores),
        f"OpenVINO, throughput hint, {cores} at a time": peer("openvino", cores, cores, "throughput"),
        f"ONNX Runtime, {cores} threads, one at a time": peer("onnxruntime", cores, 1),
        f"ONNX Runtime, one thread each, {cores} at a time": peer("onnxruntime", 1, cores),
    }
    return ours | theirs


def peak(command: Sequence[str], scenario: str, config: Path, seeds: int = 1) -> dict[str, Any]:
    """The report of the search.

    Args:
        command: a peer's, or the name of a policy alone.
        scenario: text of a scenario file; its target is put in.
        config: of the daemon.
    """
    return drive(command, scenario, config, "--find-peak", "--seeds", str(seeds))


def drive(command: Sequence[str], scenario: str, config: Path, *options: str) -> dict[str, Any]:
    """The report of `veltair load`; the arguments are those of `peak`."""
    with tempfile.TemporaryDirectory(prefix="veltair-mix-") as folder:
        own, path = Path(folder) / "serve.toml", Path(folder) / "scenario.toml"
        if len(command) == 1:
            text = config.read_text("utf-8").replace("[server]", f'[server]\npolicy = "{command[0]}"', 1)
            own.write_text(text, "utf-8")
            command = serve(own)
        with running(command) as (_, at):
            target = f'target = "grpc://{at["grpc"]}"'
            path.write_text(re.sub(r"(?m)^target = .*", target, scenario, count=1), "utf-8")
            load = [*CLI, "load", str(path), *options, "--json"]
            done = subprocess.run(load, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def table(found: dict[str, Any]) -> str:
    """Markdown: medians over the rounds; nothing where a stack was not asked."""
    searches = found["searches"]
    names = list(dict.fromkeys(search["stack"] for search in searches))
    columns = sorted({search["percentile"] for search in searches})
    qps: dict[tuple[str, float], float] = {}  # none held: some tenant misses its target even when almost idle
    for name in names:
        for column in columns:
            of_stack = [s for s in searches if (s["stack"], s["percentile"]) == (name, column)]
            if of_stack:
                qps[name, column] = median([s["peak_qps"] or 0.0 for s in of_stack])
    heads = [f"peak QPS at {column:.0%} | over the best peer" for column in columns]
    lines = [f"| stack | {' | '.join(heads)} |", "| --- |" + " --- | --- |" * len(columns)]
    for name in names:
        cells = []
        for column in columns:
            best = max((qps.get((peer, column), 0.0) for peer in names if not peer.startswith("veltair")), default=0.0)
            reached = qps.get((name, column))
            over = f"{reached / best:.2f}x" if best and reached is not None else ""
            cells.append(f"{'' if reached is None else round(reached)} | {over}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
