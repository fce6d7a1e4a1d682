"""`veltair inspect`: the layers and code versions of an artifact."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the artifact. Return exit code 0; raises ArtifactError."""
    found = load_artifact(args.artifact)
    if args.json:
        print(json.dumps(describe(found)))
    else:
        _print(found)
    return 0


def describe(found: Artifact) -> dict[str, Any]:
    """The artifact's profile as JSON values. `latency_ns` is (batches, levels, cores), as in the manifest."""
    manifest = found.manifest
    return {
        "model": manifest.model,
        "precision": manifest.precision,
        "tables": manifest.tables,
        "tables_error": manifest.tables_error,
        "qos_ns": manifest.qos_ns,
        "batches": manifest.batches,
        "levels": manifest.levels,
        "level_sources": manifest.level_sources or ("measured",) * len(manifest.levels),
        "inputs": [
            {"name": p.name, "dtype": p.dtype, "shape": p.shape} | ({"max_bytes": p.max_bytes} if p.max_bytes else {})
            for p in manifest.inputs
        ],
        "outputs": [{"name": p.name, "dtype": p.dtype, "shape": p.shape} for p in manifest.outputs],
        "arena_bytes": manifest.arena_bytes,
        "weights_bytes": found.weights.stat().st_size,
        "layers": [
            {
                "name": layer.name,
                "op": layer.op,
                "note": layer.note,
                "flops": layer.flops,
                "bytes": layer.bytes,
                "versions": [
                    {
                        "block_size": v.block_size,
                        "parallelism": v.parallelism,
                        "latency_ns": v.latency_ns,
                        "point": v.point,
                        "origin": v.origin,
                        "symbol": v.symbol,
                    }
                    for v in layer.versions
                ],
            }
            for layer in manifest.layers
        ],
        "environment": manifest.environment,
        "digest": found.digest,
    }


def _print(found: Artifact) -> None:
    manifest = found.manifest
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # a file or a pipe has room for whole names
    levels = ", ".join(f"{level:g}" for level in manifest.levels)
    if "modelled" in manifest.level_sources:
        levels += " (above 1 modelled)"
    tables = f"tables {manifest.tables} (off by {manifest.tables_error:.2g} of their largest number at most), "
    console.print(
        f"[bold]{manifest.model}[/] {manifest.precision}, target {manifest.qos_ns / 1e6:g} ms, "
        f"batches {', '.join(map(str, manifest.batches))}, "
        f"levels {levels}, {tables if manifest.tables != 'fp32' else ''}"
        f"weights {found.weights.stat().st_size / 1e6:.1f} MB, arena {manifest.arena_bytes / 1e6:.1f} MB",
        highlight=False,
        soft_wrap=True,
    )
    cores = len(manifest.layers[0].versions[0].latency_ns[0][0]) if manifest.layers else 0
    table = Table(box=None, header_style="bold")
    for column in ("layer", "op", "version"):
        table.add_column(column, overflow="fold")
    columns = ["block KB", "parallelism", *(f"{c} core{'s' * (c > 1)} us" for c in _shown(cores)), "MFLOP"]
    for column in columns:
        table.add_column(column, justify="right")
    table.add_column("origin", overflow="fold")
    for layer in manifest.layers:
        for number, version in enumerate(layer.versions):
            alone = version.latency_ns[0][0]
            times = [f"{alone[c - 1] / 1000:.1f}" for c in _shown(cores)]
            head = (layer.name, layer.op) if number == 0 else ("", "")
            flops = f"{layer.flops[0] / 1e6:.1f}" if number == 0 else ""
            sizes = (f"{version.block_size / 1024:.0f}", str(version.parallelism))
            table.add_row(*head, str(number), *sizes, *times, flops, version.origin)
    console.print(table)
    for layer in manifest.layers:
        if layer.note:
            console.print(f"{layer.name}: {layer.note}", highlight=False, soft_wrap=True, markup=False)
    console.print(
        " ".join(f"{k}={v}" for k, v in manifest.environment.items()), style="dim", highlight=False, soft_wrap=True
    )


def _shown(cores: int) -> list[int]:
    """The core counts to print, few enough for one line: powers of two and the last."""
    return sorted({*(1 << i for i in range(cores.bit_length()) if 1 << i <= cores), cores} - {0})
