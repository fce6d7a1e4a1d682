"""`veltair compile`: the command line in front of `veltair.compiler.build`."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from veltair.errors import ConfigError
from veltair.machine.isa import ISAS
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.artifact.manifest import LevelSource, Storage

LEVELS: Mapping[str, LevelSource] = {"measured": "measured", "model": "modelled"}
INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the artifact")
    parser.add_argument("--name", help="name of the model; default: the file's stem")
    parser.add_argument(
        "--qos-ms", type=float, help="latency target; default: the file's, or three times what the model takes"
    )
    parser.add_argument(
        "--trials",
        type=int,
        help="candidates to measure of a layer without shipped records (default: 64; 4 where those are another CPU's)",
    )
    parser.add_argument(
        "--precision", choices=("auto", "fp32", "bf16"), default="auto", help="auto: bf16 where it is fast"
    )
    parser.add_argument(
        "--isa", metavar="NAME", help=f"of {', '.join(ISAS)}: nothing beyond it is used; default: the richest here"
    )
    parser.add_argument("--fresh", action="store_true", help="search every layer from nothing, whatever is recorded")
    parser.add_argument(
        "--features", type=Path, metavar="FEATURES.toml", help="raw features of the inputs (docs/features.md)"
    )
    parser.add_argument(
        "--tables",
        choices=get_args(Storage),
        default="fp32",
        help="rows of lookup tables; int8: with a scale and a bias each",
    )
    parser.add_argument("--max-batch", type=int, help="the greatest of a dynamic batch")
    parser.add_argument(
        "--levels",
        choices=LEVELS,
        default="measured",
        help="interference levels: measured beside co-runners, or from a model where those cost nothing",
    )
    parser.add_argument(
        "--dump", type=Path, metavar="DIR", help="write the graph after each phase there, as numbered text files"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Exit code 0, 130 after Ctrl-C, or 143 after SIGTERM. UserError is raised to the caller."""
    for option, value, least in (("--trials", args.trials, 0), ("--max-batch", args.max_batch, 1)):
        if value is not None and value < least:
            raise ConfigError(f"{option}: expected {least} or more, found {value}")
    if args.qos_ms is not None and not 0 < args.qos_ms < 1e9:
        raise ConfigError(f"--qos-ms: expected a positive number of milliseconds, found {args.qos_ms}")
    from veltair.compiler.build import compile_model  # loads TVM's compiler: half a second

    whole = Column(no_wrap=True)  # a narrow terminal wraps the words, never the numbers
    columns = (
        TextColumn("{task.description}", table_column=Column()),
        BarColumn(20, table_column=whole),
        MofNCompleteColumn(table_column=whole),
        TimeElapsedColumn(whole),
        TimeRemainingColumn(table_column=whole),
    )
    begin = time.monotonic()
    signal.signal(signal.SIGTERM, _end)
    try:
        console = Console(stderr=True)
        # Layers differ: the time left is estimated from the last two minutes.
        with Progress(*columns, console=console, disable=args.json, speed_estimate_period=120) as progress:
            artifact = compile_model(
                args.model,
                args.out,
                name=args.name,
                qos_ns=None if args.qos_ms is None else max(1, round(args.qos_ms * 1e6)),
                trials=args.trials,
                precision=args.precision,
                isa=args.isa,
                fresh=args.fresh,
                max_batch=args.max_batch,
                features=args.features,
                tables=args.tables,
                levels=LEVELS[args.levels],
                progress=progress,
                dump=args.dump,
            )
    except KeyboardInterrupt:
        print("interrupted: only the measurements were written; the next run continues from them", file=sys.stderr)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    facts = summary(artifact) | {"seconds": round(time.monotonic() - begin, 1)}
    if args.json:
        print(json.dumps(facts))
        return 0
    Console().print(
        f"[bold]{facts['model']}[/] ({facts['precision']}): {facts['layers']} layers, {facts['versions']} versions, "
        f"{facts['alone_ms']:.2f} ms alone, target {facts['qos_ms']:g} ms, in {facts['seconds']} s -> {args.out}",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def _end(number: int, frame: object) -> None:
    """As after Ctrl-C, nothing half-written stays."""
    raise SystemExit(128 + number)


def summary(artifact: Artifact) -> dict[str, str | int | float]:
    """The result of a compile in a few numbers."""
    manifest = artifact.manifest
    best_ns = sum(min(min(v.latency_ns[0][0]) for v in layer.versions) for layer in manifest.layers)
    return {
        "model": manifest.model,
        "artifact": str(artifact.path),
        "digest": artifact.digest,
        "precision": manifest.precision,
        "tables": manifest.tables,
        "layers": len(manifest.layers),
        "versions": sum(len(layer.versions) for layer in manifest.layers),
        "max_batch": manifest.max_batch,
        "levels": len(manifest.levels),
        "levels_modelled": manifest.level_sources.count("modelled"),
        "alone_ms": best_ns / 1e6,  # at batch 1, the best versions at their best core counts
        "qos_ms": manifest.qos_ns / 1e6,
        "weights_bytes": artifact.weights.stat().st_size,
    }
