"""What the way of a query costs, from the client to the model and back: this daemon's and Triton's in turn.

    python -m bench.serving.way --triton-python PATH [--artifacts DIR] [--models DIR] [--out FILE]
        [--before PATH] [--rows lone,cpu] [--only dlrm,resnet50] [--stacks veltair] [--rounds 5]

Rows: `raw` times the engines alone (`veltair bench`), `lone` a client that asks one query after the other, `shared` the
same with system shared memory, `cpu` CPU times a query at a moderate rate, `peak` the greatest rate in target and CPU
times there, `mix` the latency of the demo's mix at a fifth of its peak. The clients share the cores with the servers.
The three models are the demo's (`make demo` builds and compiles them). The file is written after each measurement. A
run that was interrupted continues from there; `--again` starts over. CONTRIBUTING.md says how to make Triton's Python.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.paths import CLI, DEMO, RESULTS, SCENARIOS, result_path
from bench.serving import triton
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from bench.serving.way import lone_client, open_load, summary
from bench.serving.way.plan import (
    CPU,
    DEMO_MIX,
    DEMO_SHARE,
    LONE,
    MIX,
    PEAK,
    RAW,
    ROWS,
    SHARED,
    SUBJECTS,
    Measurement,
    measurements,
)
from veltair.loadgen.scenario import TenantLoad, read_scenario
from veltair.machine.environment import describe_environment
from veltair.machine.malloc import reuse_message_memory
from veltair.profiles.artifact.artifact_folder import load_artifact

BEFORE = "veltair before"
MIX_LONGER = 4  # a fifth of the peak has few queries of ResNet-50

Command = Callable[[Path, int], list[str]]  # from a configuration of the daemon, and the threads of a peer's engine


def main() -> int:
    args = _arguments()
    reuse_message_memory()  # as `veltair load` does
    servers = stacks(args)
    if args.out.exists() and not args.again:
        found = json.loads(args.out.read_text("utf-8"))
    else:
        found = {"environment": environment(args.triton_python), "cores": cores(), "measurements": []}
    done = {Measurement(*(entry[key] for key in Measurement._fields)) for entry in found["measurements"]}
    left = measurements(args.rounds, list(servers), args.rows, args.only, done)
    # No thread of rich's own: it would take the interpreter from the clients at any moment.
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as progress:
        bar = progress.add_task("", total=len(left))

        def keep(measurement: Measurement, values: dict[str, Any]) -> None:
            found["measurements"].append(measurement._asdict() | values)
            args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            progress.update(bar, advance=1, refresh=True)

        def announce(measurement: Measurement) -> None:
            words = [measurement.model, measurement.stack, measurement.row, measurement.protocol]
            text = f"round {measurement.round}: {' '.join(filter(None, words))}"
            progress.update(bar, description=text, refresh=True)

        for _, together in groupby(left, attrgetter("served")):
            _measure_together(args, servers, list(together), announce, keep)
    summary.show(found, Console())
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    triton.add_argument(parser)
    parser.add_argument("--before", metavar="PATH", help="the Python of an earlier version, to be measured as well")
    parser.add_argument("--artifacts", type=Path, default=DEMO / "artifacts", help="folder with an artifact a model")
    parser.add_argument("--models", type=Path, default=DEMO / "models", help="folder with NAME.onnx of each model")
    parser.add_argument("--out", type=result_path, default=RESULTS / "way.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=_list_of(ROWS), default=ROWS, help=f"of {', '.join(ROWS)} (default: all)")
    models = (*SUBJECTS, DEMO_MIX)
    parser.add_argument("--only", type=_list_of(models), default=models, help=f"of {', '.join(models)} (default: all)")
    parser.add_argument("--stacks", default="", help="only those with this in their names")
    parser.add_argument(
        "--queries", type=int, default=1000, help="of a lone client of DLRM; a tenth of an image network"
    )
    parser.add_argument("--seconds", type=float, default=8.0, help="how long each load is held")
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    args = parser.parse_args()
    if args.triton_python is None:
        print("== Triton is not measured: no --triton-python (see CONTRIBUTING.md)", file=sys.stderr, flush=True)
    return args


def _list_of(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A type of argparse: some of the known names, with commas between."""

    def names(text: str) -> list[str]:
        found = text.split(",")
        if not set(found) <= set(known):
            raise argparse.ArgumentTypeError(f"expected some of {','.join(known)}, got {text}")
        return found

    return names


def cores() -> int:
    """The cores that servers and clients share."""
    return len(psutil.Process().cpu_affinity())


def environment(triton_python: str | None) -> dict[str, Any]:
    """This machine and the versions on both sides."""
    found = asdict(describe_environment())
    if triton_python is not None:
        found["versions"] |= {f"{name} (Triton's)": version for name, version in triton.versions(triton_python).items()}
    return found


def stacks(args: argparse.Namespace) -> dict[str, Command]:
    """How each server is started, by its name."""

    def ours(config: Path, _: int) -> list[str]:
        return serve_command(config)

    def before(config: Path, _: int) -> list[str]:
        return [args.before, "-P", *CLI[1:], "serve", str(config), "--json"]

    def theirs(engine: str) -> Command:
        return lambda config, threads: triton.command(config, args.models, args.triton_python, engine, threads)

    found: dict[str, Command] = {"veltair": ours}
    if args.before is not None:
        found[BEFORE] = before
    if args.triton_python is not None:
        found |= {f"Triton with {name}": theirs(engine) for engine, name in triton.ENGINES.items()}
    return {name: command for name, command in found.items() if args.stacks in name}


def _measure_together(
    args: argparse.Namespace,
    servers: dict[str, Command],
    together: Sequence[Measurement],
    announce: Callable[[Measurement], None],
    keep: Callable[[Measurement, dict[str, Any]], None],
) -> None:
    """Measures what one server serves, or the engines of one model by themselves."""
    first = together[0]
    announce(first)
    if first.row == RAW:
        keep(first, raw(args, first.model))
        return
    alone = SUBJECTS.get(first.model)
    tenants = demo_tenants() if alone is None else [alone.tenant(alone.first_qps)]
    models = [ServedModel(each.name, (args.artifacts / each.name).resolve(), each.target_ms) for each in tenants]
    threads = 1 if alone is not None and alone.one_thread else cores()
    with tempfile.TemporaryDirectory(prefix="veltair-way-") as folder:
        config = Path(folder) / "serve.toml"
        write_toml(config, configuration(models))
        with running(servers[first.stack](config, threads)) as (pid, at):
            for measurement in together:
                announce(measurement)
                keep(measurement, measure(args, measurement, pid, at))


def raw(args: argparse.Namespace, model: str) -> dict[str, Any]:
    """The times of the engines alone, on one core and on all."""
    files = [str(args.artifacts / model), str(args.models / f"{model}.onnx")]
    threads = ",".join(map(str, sorted({1, cores()})))
    options = ["--threads", threads, "--batch", str(SUBJECTS[model].batch), "--rounds", "3", "--json"]
    done = subprocess.run([*CLI, "bench", *files, *options], check=True, stdout=subprocess.PIPE, text=True)
    return {"engines": json.loads(done.stdout)["rows"]}


def measure(args: argparse.Namespace, what: Measurement, pid: int, at: dict[str, str]) -> dict[str, Any]:
    """One measurement at a server that runs."""
    target = f"{what.protocol}://{at[what.protocol]}"
    if what.row == MIX:
        return mix(args.seconds, pid, target)
    subject = SUBJECTS[what.model]
    if what.row in (LONE, SHARED):
        inputs = lone_client.draw_inputs(load_artifact(args.artifacts / what.model).manifest)
        queries = args.queries if what.model == "dlrm" else max(10, args.queries // 10)
        return lone_client.ask(what.protocol, at, what.model, inputs, queries, shared=what.row == SHARED)
    if what.row == CPU:
        return open_load.drive(pid, target, [subject.tenant(subject.moderate_qps)], args.seconds)
    assert what.row == PEAK
    peak_qps = open_load.find_peak(target, [subject.tenant(subject.first_qps)], args.seconds)
    at_peak = open_load.drive(pid, target, [subject.tenant(peak_qps)], args.seconds) if peak_qps else None
    return {"peak_qps": peak_qps, "at_peak": at_peak}


def demo_tenants() -> Sequence[TenantLoad]:
    """The demo's models with their loads and targets."""
    return read_scenario(SCENARIOS / "demo.toml").tenants


def mix(seconds: float, pid: int, target: str) -> dict[str, Any]:
    """The demo's mix: its peak, and a load of a fifth of that."""
    tenants = demo_tenants()
    peak_qps = open_load.find_peak(target, tenants, seconds)
    if not peak_qps:
        return {"peak_qps": peak_qps, "at_share": None}
    scale = DEMO_SHARE * peak_qps / sum(tenant.qps for tenant in tenants)
    scaled = [msgspec.structs.replace(tenant, qps=tenant.qps * scale) for tenant in tenants]
    return {"peak_qps": peak_qps, "at_share": open_load.drive(pid, target, scaled, MIX_LONGER * seconds)}


if __name__ == "__main__":
    raise SystemExit(main())
