"""What a daemon answers in time while clients ask for more than it can serve.

    python -m bench.serving.overload [--artifacts DIR] [--factors 1,2,5] [--seconds 60] [--protocols grpc,http]
        [--out FILE]

Two tenants share the machine: DLRM, small queries with a target of 100 ms, and MobileNet-V2, images with 50 ms, eight
to one. First the peak is searched, the highest load at which 95 % of each are in target; then the load is a multiple
of it, at last of each tenant alone, while the other stays at its part of the peak, or at half of that. The load
generator shares the cores with the daemon, and goes before it: else its lateness would be counted as the daemon's. The
models are the demo's (`make demo` compiles them).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.part_tables import markdown_table
from bench.paths import CLI, DEMO, RESULTS, result_path
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml

TITLE = "Overload"
TEXT = """DLRM (target 100 ms) and MobileNet-V2 (50 ms), eight to one, at their peak and at multiples of it, on two
cores of an EPYC with AVX-512 (`python -m bench.serving.overload --seconds 10`), which the load generator shares."""
TENANTS = (("dlrm", 800.0, 100.0), ("mobilenet_v2", 100.0, 50.0))  # name, queries a second at factor 1, target in ms
PEAK_SECONDS = 10.0
FIRST = ("nice", "-n", "-16")  # before all processes of the daemon
HEADINGS = (
    *("protocol", "tenant", "of its part of the peak", "the other", "offered a second", "in target, of those admitted"),
    *("in target a second", "refusal p99 ms"),
)


def main() -> int:
    args = _arguments()
    console = Console()
    runs: list[dict[str, Any]] = []
    for protocol in args.protocols:
        with tempfile.TemporaryDirectory() as folder:
            runs += measure(Path(folder), protocol, args.artifacts, args.factors, args.seconds, console)
    write_runs(args.out, runs)
    console.print(table(runs))
    return 0


def measure(
    folder: Path, protocol: str, artifacts: Path, factors: list[float], seconds: float, console: Console
) -> list[dict[str, Any]]:
    """The load at the peak and at its multiples, of all tenants and of each, against one daemon."""
    names = [name for name, _, _ in TENANTS]
    plan = [dict.fromkeys(names, factor) for factor in factors]
    for quiet in (1.0, 0.5):  # a flood, beside its neighbour at its part of the peak, and at half of that
        plan += [{name: max(factors) if name == flooding else quiet for name in names} for flooding in names]
    config, found = folder / "serve.toml", []
    write_toml(config, configuration([ServedModel(name, artifacts / name, ms) for name, _, ms in TENANTS]))
    with running(serve_command(config)) as (_, where):
        target = f"{protocol}://{where[protocol]}"
        peak = load(folder, target, scaled(dict.fromkeys(names, 1.0)), PEAK_SECONDS, "--find-peak", "--seeds", "1")
        per_second = sum(qps for _, qps, _ in TENANTS)
        scale = (peak["peak_qps"] or 0.0) / per_second
        if not scale:
            raise SystemExit("no load held the targets: the machine is too slow or too busy")
        for multiples in plan:
            told = ", ".join(f"{name} x {factor:g}" for name, factor in multiples.items())
            console.print(f"{protocol}: of the peak of {peak['peak_qps']:.0f} queries a second: {told}")
            report = load(folder, target, scaled({name: scale * each for name, each in multiples.items()}), seconds)
            keep = {key: report[key] for key in ("tenants", "max_lag_ms", "client_cpu_us_per_query", "environment")}
            found.append({"protocol": protocol, "multiples": multiples, "peak_qps": peak["peak_qps"], **keep})
    return found


def write_runs(path: Path, runs: list[dict[str, Any]]) -> None:
    """All were measured in one environment, which is written once."""
    environment, *_ = [run.pop("environment") for run in runs]
    path.write_text(json.dumps({"environment": environment, "runs": runs}, indent=1) + "\n", "utf-8")


def scaled(scales: dict[str, float]) -> list[dict[str, Any]]:
    """The tenants of a load, each at so many times its rate."""
    return [{"name": name, "qps": qps * scales[name], "target_ms": ms} for name, qps, ms in TENANTS]


def load(folder: Path, target: str, tenants: list[dict[str, Any]], seconds: float, *options: str) -> dict[str, Any]:
    """A report of `veltair load`, of a scenario with these tenants."""
    scenario = folder / "load.toml"
    run = {"target": target, "duration_s": seconds, "warmup_s": 2.0, "seed": 1, "connections": 4}
    write_toml(scenario, {"load": run, "tenants": tenants})
    command = [*FIRST, *CLI, "load", str(scenario), "--json", *options]
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return found


def cells(runs: list[dict[str, Any]]) -> list[list[str]]:
    """A row for each tenant of each run, as `HEADINGS` say."""
    rows = []
    for run in runs:
        for tenant in run["tenants"]:
            admitted, refused = tenant["admitted_rate"], tenant["refused_p99_ms"]
            (other,) = [factor for name, factor in run["multiples"].items() if name != tenant["name"]]
            rows.append(
                [
                    run["protocol"],
                    tenant["name"],
                    f"{run['multiples'][tenant['name']]:g}",
                    f"{other:g}",
                    f"{tenant['offered_qps']:,.0f}",
                    "-" if admitted is None else f"{100 * admitted:.2f} %",
                    f"{tenant['offered_qps'] * (tenant['qos_rate'] or 0):,.0f}",
                    "-" if refused is None else f"{refused:.2f}",
                ]
            )
    return rows


def markdown(runs: list[dict[str, Any]]) -> str:
    return markdown_table(list(HEADINGS), cells(runs))


def table(runs: list[dict[str, Any]]) -> Table:
    grid = Table(title="overload")
    for heading in HEADINGS:
        grid.add_column(heading, justify="left" if heading in ("protocol", "tenant") else "right")
    for row in cells(runs):
        grid.add_row(*row)
    return grid


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.serving.overload", description="Goodput at multiples of the peak.")
    parser.add_argument("--artifacts", type=Path, default=DEMO / "artifacts")
    parser.add_argument(
        "--factors", type=lambda text: [float(part) for part in text.split(",")], default=[1.0, 2.0, 5.0]
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--protocols", type=lambda text: text.split(","), default=["grpc", "http"])
    parser.add_argument("--out", type=result_path, default=RESULTS / "overload.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
