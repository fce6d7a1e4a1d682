"""A mix of models served by this daemon under several policies, by peers behind the same front end, and by Triton.

    python -m bench.serving.mix SCENARIO.toml [--policies a,b] [--rounds 3] [--percentiles 0.95,0.99] [--shared-memory]
        [--slower 3] [--triton-python PATH]

The scenario's tenants name models of the zoo or of the onnx package's `light_*` networks; they are built and compiled
into demo/mix first. Then every round takes each stack in turn: it starts the stack, searches the greatest load at which
every tenant keeps its percentile within target (`veltair load --find-peak`, over gRPC), and stops the stack. The load
generator shares the cores with all of them alike. The results are written to `bench/results/mix-<scenario>.json` after
each search. A run that was interrupted continues from there; `--again` starts over.
"""

from __future__ import annotations

import argparse
import copy
import json
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
import psutil

from bench.paths import CLI, DEMO, RESULTS
from bench.serving import triton
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from veltair.machine.environment import describe_environment
from veltair.zoo.recommendation.table_sizes import most_rows
from veltair.zoo.registry import RECOMMENDERS, ZOO

FOLDER = DEMO / "mix"
TABLE_BYTES = 1 << 30  # of a model: each peer's session holds them as well
Scenario = dict[str, Any]  # the document of a scenario file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", type=Path, metavar="SCENARIO.toml")
    parser.add_argument("--policies", default="veltair,veltair-full,fcfs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percentiles", default="0.95,0.99")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each load of a search is held")
    parser.add_argument("--stacks", default="", help="only those with this in their names")
    parser.add_argument("--slower", type=float, default=1.0, help="targets so many times as long, queries as rare")
    parser.add_argument("--shared-memory", action="store_true", help="queries name tensors in shared memory")
    triton.add_argument(parser)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of this machine's results")
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    args = parser.parse_args()
    slower = "" if args.slower == 1 else f"-slower-{args.slower:g}"
    args.results.mkdir(parents=True, exist_ok=True)
    path = args.results / f"mix-{args.scenario.stem}{slower}{'-shared' * args.shared_memory}.json"
    found: dict[str, Any] = {"environment": asdict(describe_environment()), "searches": []}
    if path.exists() and not args.again:
        found = json.loads(path.read_text("utf-8"))
    done = {(s["stack"], s["percentile"], s["round"]) for s in found["searches"]}
    scenario = slowed(read_document(args.scenario), args.slower)
    if args.shared_memory:
        scenario["load"]["shared_memory"] = True
    if args.triton_python is None:
        print("== Triton is not among the peers: no --triton-python (see CONTRIBUTING.md)", file=sys.stderr, flush=True)
    config = prepare(scenario, args.scenario.stem)
    for number in range(1, args.rounds + 1):
        for percentile in map(float, args.percentiles.split(",")):
            for name, command in stacks(config, args.policies, args.triton_python).items():
                if (name, percentile, number) in done or args.stacks not in name:
                    continue
                print(f"== round {number}, {percentile:.0%}: {name}", flush=True)
                report = find_peak(command, with_settings(scenario, percentile, number, args.seconds), config)
                found["searches"].append({"stack": name, "percentile": percentile, "round": number, **report})
                path.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(table(found))
    return 0


def read_document(path: Path) -> Scenario:
    """A scenario file as it stands, to be changed and written again."""
    return tomllib.loads(path.read_text("utf-8"))


def slowed(scenario: Scenario, times: float) -> Scenario:
    """The scenario for a machine that is so many times as slow as the one that it was made for."""
    for tenant in scenario["tenants"]:
        tenant["target_ms"] *= times
        tenant["qps"] /= times
    return scenario


def prepare(scenario: Scenario, stem: str, precision: str = "auto") -> Path:
    """Builds and compiles the models of a scenario where they are missing.

    Artifacts are kept in demo/mix by precision. Returns the path of the daemon's configuration, whose stem is
    given.
    """
    (FOLDER / "models").mkdir(parents=True, exist_ok=True)
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    models = []
    for tenant in scenario["tenants"]:
        name = tenant["name"]
        model, artifact = FOLDER / "models" / f"{name}.onnx", FOLDER / precision / name
        if not model.exists():
            if name in ZOO:
                subprocess.run([*CLI, "zoo", name, "--out", str(model), *zoo_rows(name)], check=True)
            else:
                shutil.copy(light / f"{name}.onnx", model)
        if not artifact.exists():
            options = ["--out", str(artifact), "--name", name, "--precision", precision]
            options.append("--fresh-timings")  # what is published is measured now
            subprocess.run([*CLI, "compile", str(model), *options], check=True)
        models.append(ServedModel(name, artifact, tenant["target_ms"]))
    config = FOLDER / f"{stem}.toml"
    write_toml(config, configuration(models))
    return config


def zoo_rows(name: str) -> list[str]:
    """Options for `veltair zoo` that cut the tables of a recommendation model to `TABLE_BYTES`."""
    recommender = RECOMMENDERS.get(name)
    return [] if recommender is None else ["--rows", str(most_rows(recommender.tables, TABLE_BYTES))]


def with_settings(scenario: Scenario, percentile: float, seed: int, duration_s: float) -> Scenario:
    """The scenario with this percentile for all tenants, this seed and this duration."""
    changed = copy.deepcopy(scenario)
    changed["load"] |= {"seed": seed, "duration_s": duration_s}
    for tenant in changed["tenants"]:
        tenant["percentile"] = percentile
    return changed


def stacks(config: Path, policies: str, triton_python: str | None = None) -> dict[str, list[str]]:
    """The command of each stack by its name. A peer gets what its makers advise for low latency and for throughput.

    Triton is among them where `triton_python` says which Python has it. It serves one query at a time of each model.
    """
    cores = len(psutil.Process().cpu_affinity())
    peers = [sys.executable, "-m", "bench.serving.peers", str(config), str(FOLDER / "models"), "--engine"]

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
    if triton_python is not None:
        for engine, name in triton.ENGINES.items():
            command = triton.command(config, FOLDER / "models", triton_python, engine, cores)
            theirs[f"Triton with {name}, {cores} threads"] = command
    return ours | theirs


def find_peak(command: Sequence[str], scenario: Scenario, config: Path, seeds: int = 1) -> dict[str, Any]:
    """Searches the greatest load that a stack holds, and returns the report of the search.

    Args:
        command: a peer's command, or the name of a policy alone.
        scenario: the document of a scenario file; its target is set here.
        config: path of the daemon's configuration.
        seeds: how many seeds each load is tried with.
    """
    return drive(command, scenario, config, "--find-peak", "--seeds", str(seeds))


def drive(command: Sequence[str], scenario: Scenario, config: Path, *options: str) -> dict[str, Any]:
    """Runs `veltair load` with these options against a stack; the other arguments are those of `find_peak`."""
    with tempfile.TemporaryDirectory(prefix="veltair-mix-") as folder:
        own, path = Path(folder) / "serve.toml", Path(folder) / "scenario.toml"
        if len(command) == 1:
            document = tomllib.loads(config.read_text("utf-8"))
            document["server"]["policy"] = command[0]
            write_toml(own, document)
            command = serve_command(own)
        with running(command) as (_, at):
            write_toml(path, scenario | {"load": scenario["load"] | {"target": f"grpc://{at['grpc']}"}})
            load = [*CLI, "load", str(path), *options, "--json"]
            done = subprocess.run(load, check=True, stdout=subprocess.PIPE, text=True)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def table(found: dict[str, Any]) -> str:
    """Markdown: medians over the rounds; a cell is empty where a stack was not measured."""
    searches = found["searches"]
    names = list(dict.fromkeys(search["stack"] for search in searches))
    columns = sorted({search["percentile"] for search in searches})
    qps: dict[tuple[str, float], float] = {}  # 0 where none held: a tenant misses its target even when almost idle
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
