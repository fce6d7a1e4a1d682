"""How many queries a second the front side carries: CPU time a query of I/O threads and engine, with 1 and 2 fronts.

    python -m bench.serving.fronts [--rounds 3] [--seconds 6] [--out bench/results/fronts.json]

Two models that compute next to nothing, with inputs of 7 KB and of 0.6 MB, over gRPC; their queries are not batched. An
I/O thread carries the inverse of its CPU time a query, and so does the engine, of which there is one. If a second front
leaves the CPU time of a query as it is, the threads share nothing that slows them, and N of them carry N times as much:
so the table carries the figures to machines with more cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from onnx import helper
from rich.console import Console
from rich.progress import track

from bench.part_tables import markdown_table
from bench.paths import RESULTS, result_path
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from bench.serving.front_end import compile_nodes
from bench.serving.way.open_load import drive
from veltair.loadgen.scenario import TenantLoad
from veltair.machine.environment import describe_environment

FRONTS = (1, 2)
TARGET_MS = 1000.0


class Body(NamedTuple):
    """A kind of query: the network that takes it, the rate at which it is measured, and the rate that is wanted."""

    name: str
    title: str
    operator: str
    shape: tuple[int, ...]
    out: tuple[int, ...]
    qps: float
    wanted_qps: float  # below it the front side is never to be the bottleneck


BODIES = (
    Body("row", "7 KB", "Relu", (1, 1792), (1, 1792), 1500.0, 50_000.0),
    Body("image", "0.6 MB", "GlobalAveragePool", (1, 3, 224, 224), (1, 3, 1, 1), 200.0, 5_000.0),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each load is held")
    parser.add_argument("--out", type=result_path, default=RESULTS / "fronts.json")
    args = parser.parse_args()
    turns = [(fronts, body) for _ in range(args.rounds) for fronts in FRONTS for body in BODIES]
    found: dict[str, Any] = {"environment": asdict(describe_environment()), "measurements": []}
    with tempfile.TemporaryDirectory(prefix="veltair-fronts-") as name:
        folder = Path(name)
        for body in BODIES:
            compile_nodes(folder, body.name, [helper.make_node(body.operator, ["x"], ["y"])], body.shape, body.out)
        for fronts, body in track(turns, description="loads", console=Console(stderr=True)):
            measured = measure(folder, fronts, body, args.seconds)
            found["measurements"].append({"fronts": fronts, "body": body.name, **measured})
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(table(found))
    return 0


def measure(folder: Path, fronts: int, body: Body, seconds: float) -> dict[str, Any]:
    """Serves one model with this many I/O threads under a steady load; CPU times a query by role."""
    document = configuration([ServedModel(body.name, folder / body.name, TARGET_MS)])
    document["server"]["fronts"] = fronts
    config = folder / "serve.toml"
    write_toml(config, document)
    with running(serve_command(config)) as (pid, at):
        return drive(pid, f"grpc://{at['grpc']}", [TenantLoad(body.name, body.qps, TARGET_MS)], seconds)


def cpu_us(found: Mapping[str, Any], body: str, fronts: int, role: str) -> float:
    """Median over the rounds of the CPU time a query."""
    own: Sequence[Mapping[str, Any]] = [
        each for each in found["measurements"] if (each["body"], each["fronts"]) == (body, fronts)
    ]
    return 1e3 * median(each["server_cpu_ms"][role] for each in own)


def table(found: Mapping[str, Any]) -> str:
    """Markdown: CPU times, and the rates that follow from them."""
    rows = []
    for body in BODIES:
        one, two = (cpu_us(found, body.name, fronts, "front") for fronts in FRONTS)
        engine_us = cpu_us(found, body.name, 1, "engine")
        threads = ceil(body.wanted_qps * max(one, two) / 1e6)
        rows.append(
            [
                body.title,
                f"{one:.0f} / {two:.0f}",
                f"{1e6 / one:,.0f} / {2e6 / two:,.0f}",
                f"{threads} for {body.wanted_qps:,.0f}",
                f"{engine_us:.0f}",
                f"{1e6 / engine_us:,.0f}",
            ]
        )
    header = ["query", "front, CPU us, 1 / 2 fronts", "1 / 2 fronts carry, a second", "fronts needed"]
    return markdown_table([*header, "engine, CPU us", "engine carries, a second"], rows)


if __name__ == "__main__":
    raise SystemExit(main())
