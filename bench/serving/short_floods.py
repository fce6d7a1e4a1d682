"""Whether a tenant of short queries has its share of the machine while another one floods it with the same.

    python -m bench.serving.short_floods [--artifact DIR] [--seconds 10] [--target-ms 10] [--protocols grpc,http]
        [--out FILE]

Both serve one model, DLRM, with one target, and differ in weight or not. First the peak is searched, both asked
alike; then the quiet one asks for half of what its weight gives it of that, and the other for ten times as much. The
load generator shares the cores with the daemon, and goes before it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.part_tables import markdown_table
from bench.paths import DEMO, RESULTS, result_path
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from bench.serving.overload import load, write_runs

TITLE = "A flood of short queries beside a quiet tenant"
TEXT = """Two tenants serve DLRM, one row a query, with a target of 10 ms, over connections of their own, on two cores
of an EPYC with AVX2, which the load generator shares (`python -m bench.serving.short_floods --seconds 5`). The quiet
one asks for half of what its weight gives it of the peak, the other for ten times as much. The bar is 99 % for the
quiet one."""
HEADINGS = (
    *("protocol", "weights", "peak QPS", "quiet, offered a second", "in target", "flood, offered a second"),
    *("in target", "together, in target a second"),
)
NAMES = ("quiet", "flood")
WEIGHTS = ((1, 1), (2, 1), (1, 2))  # of the quiet one, and of the one that floods
USED, FLOOD = 0.5, 10.0  # of the quiet one's share; times as much
PEAK_SECONDS = 5.0


def main() -> int:
    parser = argparse.ArgumentParser("bench.serving.short_floods", description=__doc__)
    parser.add_argument("--artifact", type=Path, default=DEMO / "artifacts" / "dlrm")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--target-ms", type=float, default=10.0)
    parser.add_argument("--protocols", type=lambda text: text.split(","), default=["grpc", "http"])
    parser.add_argument("--out", type=result_path, default=RESULTS / "short-floods.json")
    args = parser.parse_args()
    runs: list[dict[str, Any]] = []
    for protocol in args.protocols:
        for weights in WEIGHTS:
            with tempfile.TemporaryDirectory() as folder:
                runs.append(measure(Path(folder), protocol, args.artifact, args.target_ms, weights, args.seconds))
            print(row(runs[-1]), flush=True)
    write_runs(args.out, runs)
    return 0


def measure(
    folder: Path, protocol: str, artifact: Path, target_ms: float, weights: tuple[int, int], seconds: float
) -> dict[str, Any]:
    """Search the peak, and let one flood."""
    config = folder / "serve.toml"
    document = configuration([ServedModel(name, artifact, target_ms) for name in NAMES])
    for tenant, weight in zip(document["tenants"], weights, strict=True):
        tenant["weight"] = weight
    write_toml(config, document)
    with running(serve_command(config)) as (_, where):
        target = f"{protocol}://{where[protocol]}"
        alike = asked(target_ms, 1000.0, 1000.0)
        peak_qps = load(folder, target, alike, PEAK_SECONDS, "--find-peak", "--seeds", "1")["peak_qps"]
        if not peak_qps:
            raise SystemExit("no load held the targets: the machine is too slow or too busy")
        quiet_qps = USED * peak_qps * weights[0] / sum(weights)
        report = load(folder, target, asked(target_ms, quiet_qps, FLOOD * quiet_qps), seconds)
    keep = {key: report[key] for key in ("tenants", "max_lag_ms", "environment")}
    return {"protocol": protocol, "weights": weights, "peak_qps": peak_qps, **keep}


def asked(target_ms: float, quiet_qps: float, flood_qps: float) -> list[dict[str, Any]]:
    """The tenants of a load."""
    rates = zip(NAMES, (quiet_qps, flood_qps), strict=True)
    return [{"name": name, "qps": qps, "target_ms": target_ms} for name, qps in rates]


def markdown(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in runs:
        cells, goodput = [run["protocol"], ":".join(map(str, run["weights"])), f"{run['peak_qps']:,.0f}"], 0.0
        for tenant in run["tenants"]:
            share = tenant["qos_rate"] or 0.0
            goodput += share * tenant["offered_qps"]
            cells += [f"{tenant['offered_qps']:,.0f}", f"{share:.1%}"]
        rows.append([*cells, f"{goodput:,.0f}"])
    return markdown_table(HEADINGS, rows)


def row(run: dict[str, Any]) -> str:
    told = [
        f"{tenant['name']} {100 * (tenant['qos_rate'] or 0):.2f} % in target of {tenant['offered_qps']:,.0f} a second,"
        f" {tenant['refused']} refused"
        for tenant in run["tenants"]
    ]
    weights = ":".join(map(str, run["weights"]))
    return f"{run['protocol']}, weights {weights}, peak {run['peak_qps']:,.0f}: {'; '.join(told)}"


if __name__ == "__main__":
    sys.exit(main())
