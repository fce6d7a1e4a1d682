"""`veltair inspect`: the layers and code versions of an artifact."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from veltair.commands.usage import snippets
from veltair.config import ServerConfig
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.manifest import ExpectedAnswer, Manifest, Port
from veltair.profiles.artifact.summary import describe_dimension, fastest_alone_ns
from veltair.terminal import Column, ResultTable, result_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.epilog = """\
examples:
  veltair inspect artifacts/resnet50
  veltair inspect artifacts/resnet50 --json"""


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
        "answer": None
        if manifest.answer is None
        else {"tolerance": manifest.answer.tolerance, **_counts(manifest.answer)},
        "qos_ns": manifest.qos_ns,
        "batches": manifest.batches,
        "levels": manifest.levels,
        "level_sources": manifest.level_sources or ("measured",) * len(manifest.levels),
        "inputs": [
            _describe_port(manifest, p) | ({"max_bytes": p.max_bytes} if p.max_bytes else {})
            for p in manifest.client_inputs
        ],
        "outputs": [_describe_port(manifest, p) for p in manifest.outputs],
        "dimension": None if manifest.dimension is None else msgspec.to_builtins(manifest.dimension),
        "bags": msgspec.to_builtins(manifest.ragged),
        "alone_ns": dict(_alone_ns(manifest)),
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


def _describe_port(manifest: Manifest, port: Port) -> dict[str, Any]:
    shape = port.shape if manifest.dimension is None else manifest.dimension.client_shape(port.name, port.shape)
    described = {"name": port.name, "dtype": port.dtype, "shape": shape}
    return described | ({"labels": port.labels} if port.labels else {})


def _alone_ns(manifest: Manifest) -> Iterator[tuple[int, int]]:
    """The time of one sample by extent of the dimension that queries choose."""
    if manifest.dimension is not None:
        for extent, bucket in zip(manifest.dimension.extents, manifest.every_bucket, strict=True):
            yield extent, fastest_alone_ns(bucket)


def _print(found: Artifact) -> None:
    manifest = found.manifest
    console = result_console()
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
    console.print(_describe_answer(manifest.answer), highlight=False, soft_wrap=True)
    if manifest.dimension is not None:
        listed = ", ".join(f"{extent} {ns / 1e6:.2f}" for extent, ns in _alone_ns(manifest))
        text = f"{describe_dimension(manifest.dimension)}; alone, ms: {listed}; the layers are those at the first"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for line in found.summary().splitlines()[2:]:
        console.print(line, markup=False, soft_wrap=True)
    _version_table(manifest).print(console)
    for layer in manifest.layers:
        if layer.note:
            console.print(f"{layer.name}: {layer.note}", highlight=False, soft_wrap=True, markup=False)
    console.print(
        " ".join(f"{k}={v}" for k, v in manifest.environment.items()), style="dim", highlight=False, soft_wrap=True
    )
    server = ServerConfig()
    console.print(
        f"\nOnce it is served (veltair serve {shlex.quote(str(found.path))}):\n", markup=False, soft_wrap=True
    )
    console.print(snippets(manifest.model, manifest, server.http, server.grpc), markup=False, soft_wrap=True)


def _version_table(manifest: Manifest) -> ResultTable:
    """A row for each code version, with its times alone on some counts of cores."""
    cores = len(manifest.layers[0].versions[0].latency_ns[0][0]) if manifest.layers else 0
    times = [Column(f"{c} core{'s' * (c > 1)}\nus", rank=0 if c == cores else 3) for c in _shown(cores)]
    table = ResultTable(
        (
            Column("layer", is_name=True),
            Column("op", is_name=True, rank=1),
            Column("version"),
            Column("block\nKB", rank=4),
            Column("parallelism", rank=4),
            *times,
            Column("MFLOP", rank=2),
            Column("origin", is_name=True, rank=5),
        )
    )
    for layer in manifest.layers:
        for number, version in enumerate(layer.versions):
            alone = version.latency_ns[0][0]
            shown = [f"{alone[c - 1] / 1000:.1f}" for c in _shown(cores)]
            head = (layer.name, layer.op) if number == 0 else ("", "")
            flops = f"{layer.flops[0] / 1e6:.1f}" if number == 0 else ""
            sizes = (f"{version.block_size / 1024:.0f}", str(version.parallelism))
            table.add(*head, str(number), *sizes, *shown, flops, version.origin)
    return table


def _counts(answer: ExpectedAnswer) -> dict[str, int]:
    """How many values of the outputs are compared at every load, and how many of those chosen are not."""
    values = [value for output in answer.outputs for value in output.values]
    return {"compared": len(values) - values.count(None), "left_out": values.count(None)}


def _describe_answer(answer: ExpectedAnswer | None) -> str:
    if answer is None:
        return "it holds no answer, so a load compares nothing; compile it again"
    counts = _counts(answer)
    left = f", {counts['left_out']} left out, on which its versions disagree" if counts["left_out"] else ""
    return f"a load compares {counts['compared']} values of its answer, to {answer.tolerance:g} of the largest{left}"


def _shown(cores: int) -> list[int]:
    """The core counts to print, few enough for one line: powers of two and the last."""
    return sorted({*(1 << i for i in range(cores.bit_length()) if 1 << i <= cores), cores} - {0})
