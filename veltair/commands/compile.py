"""`veltair compile`: the command line in front of `veltair.compiler.build`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from veltair.api.compiling import PRECISIONS, ReportedProgress
from veltair.commands import refuse_to_overwrite
from veltair.errors import ConfigError
from veltair.machine.isa import ISAS
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.profiles.artifact.manifest import ONNX_LAYER, LevelSource, Manifest, Storage
from veltair.profiles.artifact.summary import describe_dimension, fastest_alone_ns
from veltair.profiles.cache.cache_folder import CacheFolder, cache_path
from veltair.terminal import ProgressLines, result_console

if TYPE_CHECKING:
    from veltair.compiler.tuning.kernel_cache import CacheCounts, KernelCache

LEVELS: Mapping[str, LevelSource] = {"measured": "measured", "model": "modelled"}
INT8_PRODUCTS = frozenset({"matmul_int8", "conv2d_int8", "depthwise_int8"})
SHOWN_FALLBACK = 4  # layers that are left to ONNX Runtime, of many the first
INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=Path, metavar="MODEL", help="an ONNX file, or a folder with a SavedModel")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder of the artifact")
    parser.add_argument("--force", action="store_true", help="replace the artifact that is there")
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
        "--precision",
        choices=PRECISIONS,
        default="auto",
        help="auto: bf16 where it is fast; int8: products of 8-bit integers, of a float file with --calibrate",
    )
    parser.add_argument(
        "--calibrate",
        type=Path,
        metavar="DATA.npz",
        help="samples of the inputs: an array of each name, whose first dimension counts samples",
    )
    parser.add_argument(
        "--isa", metavar="NAME", help=f"of {', '.join(ISAS)}: nothing beyond it is used; default: the richest here"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="search every layer from nothing, whatever is recorded, and measure all times again",
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="compile and measure everything again, and keep nothing of it"
    )
    parser.add_argument(
        "--fresh-timings", action="store_true", help="measure all times again, also those of kept kernels"
    )
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
        "--dim",
        action="append",
        default=[],
        metavar="NAME=EXTENT|LOW..HIGH",
        help="of a dimension that the file leaves open, the extent, as height=640, or for one beside the batch the "
        "bounds within which each query chooses it, as seq=1..512; INPUT:AXIS where it has no name; NAME,NAME=… where "
        "it has several",
    )
    parser.add_argument(
        "--levels",
        choices=LEVELS,
        default="measured",
        help="interference levels: measured beside co-runners, or from a model where those cost nothing",
    )
    parser.add_argument(
        "--no-fallback",
        action="store_true",
        help="refuse what nothing of veltair computes, instead of having ONNX Runtime run it",
    )
    parser.add_argument(
        "--output-room",
        type=int,
        metavar="ELEMENTS",
        help="for each sample of an output whose extents values decide, as of detections (default: 65536)",
    )
    parser.add_argument(
        "--bag-room",
        action="append",
        default=[],
        metavar="[INPUT=]IDS",
        help="of a bag, at most, where bags differ in length; INPUT: of the bags whose ids it holds (default: 128)",
    )
    parser.add_argument(
        "--tensorflow-python",
        metavar="PYTHON",
        help="one that has TensorFlow and tf2onnx, for a SavedModel; default: $VELTAIR_TENSORFLOW_PYTHON",
    )
    parser.add_argument(
        "--dump", type=Path, metavar="DIR", help="write the graph after each phase there, as numbered text files"
    )
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    parser.epilog = """\
examples:
  veltair compile resnet50.onnx --out artifacts/resnet50
  veltair compile resnet50.onnx --out artifacts/resnet50-int8 --precision int8 --calibrate images.npz
  veltair compile bert.onnx --out artifacts/bert --name bert --max-batch 8 --dim sequence=1..512
  veltair compile saved_model/ --out artifacts/ranker --tensorflow-python tensorflow-env/bin/python"""


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 130 after Ctrl-C. UserError is raised to the caller."""
    _check(args)
    from veltair.compiler.tuning.kernel_cache import KernelCache  # loads TVM's compiler: half a second

    folder = None if args.no_cache else CacheFolder(cache_path())
    cache = KernelCache(folder, fresh_timings=args.fresh_timings or args.fresh)
    begin = time.monotonic()
    try:
        artifact = _compile(args, cache)
    except KeyboardInterrupt:
        print("interrupted: only the measurements were written; the next run continues from them", file=sys.stderr)
        return INTERRUPTED
    facts = summary(artifact) | asdict(cache.counts) | {"seconds": round(time.monotonic() - begin, 1)}
    if args.json:
        print(json.dumps(facts))
        return 0
    console = result_console()
    console.print(f"{args.out}, compiled in {facts['seconds']} s\n{artifact.summary()}", markup=False, soft_wrap=True)
    for sentence in filter(None, (*decisions(args, artifact), reused(cache.counts))):
        console.print(sentence, markup=False, soft_wrap=True)
    console.print(f"\nserve it: veltair serve {shlex.quote(str(args.out))}", markup=False, soft_wrap=True)
    return 0


def _check(args: argparse.Namespace) -> None:
    """Raises ConfigError for what is wrong in the options by themselves, before TVM's compiler is loaded."""
    for option, value, least in (("--trials", args.trials, 0), ("--max-batch", args.max_batch, 1)):
        if value is not None and value < least:
            raise ConfigError(f"{option}: expected {least} or more, found {value}")
    if args.calibrate is not None and args.precision != "int8":
        raise ConfigError(f"--calibrate: is for --precision int8, not {args.precision}")
    if args.qos_ms is not None and not 0 < args.qos_ms < 1e9:
        raise ConfigError(f"--qos-ms: expected a positive number of milliseconds, found {args.qos_ms}")
    refuse_to_overwrite(args.out, force=args.force)


def _compile(args: argparse.Namespace, cache: KernelCache) -> Artifact:
    from veltair.compiler.build import compile_model
    from veltair.compiler.onnx.bags.bag_inputs import checked_bag_room, parse_bag_room
    from veltair.compiler.onnx.dimensions.given_dimensions import GivenDimensions
    from veltair.compiler.onnx.folding.sized_outputs import checked_room
    from veltair.compiler.onnx.tensorflow.saved_model import as_onnx

    bag_room = checked_bag_room(dict(parse_bag_room(text) for text in args.bag_room), "--bag-room")
    room = checked_room(args.output_room, "--output-room")
    dimensions = GivenDimensions.parse(args.dim, "--dim")
    with as_onnx(args.model, args.tensorflow_python) as onnx, _progress(as_json=args.json) as progress:
        return compile_model(
            onnx,
            args.out,
            name=args.name,
            qos_ns=None if args.qos_ms is None else max(1, round(args.qos_ms * 1e6)),
            trials=args.trials,
            precision=args.precision,
            samples=args.calibrate,
            isa=args.isa,
            fresh=args.fresh,
            max_batch=args.max_batch,
            features=args.features,
            tables=args.tables,
            levels=LEVELS[args.levels],
            fallback=not args.no_fallback,
            output_room=room,
            bag_room=bag_room,
            dimensions=dimensions,
            cache=cache,
            progress=progress,
            dump=args.dump,
        )


def _progress(*, as_json: bool) -> Progress:
    """A bar on a terminal, lines elsewhere, and nothing beside JSON."""
    console = Console(stderr=True)
    if not (as_json or console.is_terminal):
        return ReportedProgress(ProgressLines())
    whole = Column(no_wrap=True)  # a narrow terminal wraps the words, never the numbers
    return Progress(
        TextColumn("{task.description}", table_column=Column()),
        BarColumn(20, table_column=whole),
        MofNCompleteColumn(table_column=whole),
        TimeElapsedColumn(whole),
        TimeRemainingColumn(table_column=whole),
        console=console,
        disable=as_json,
        speed_estimate_period=120,  # layers differ: the time left is estimated from the last two minutes
    )


def decisions(args: argparse.Namespace, artifact: Artifact) -> Iterator[str]:
    """What the compiler decided by itself, a sentence each."""
    manifest = artifact.manifest
    if manifest.calibrated:
        yield (
            f"Its scales are of {manifest.calibrated} samples; `veltair verify DIR {shlex.quote(str(args.model))} "
            "--data DATA.npz` states its accuracy on others."
        )
    if args.precision == "auto" and manifest.precision == "bf16":
        yield (
            "It computes in bfloat16, with 8 significant bits, since this CPU is fast at it; `veltair verify` "
            "states the error, and --precision fp32 avoids it."
        )
    elif args.precision == "auto":
        yield "It computes in float32: bfloat16 is not faster on this CPU, or not exact enough for such a model."
    if integer := _int8_layers(manifest):
        yield f"{integer} of {len(manifest.layers)} layers multiply 8-bit integers; `veltair inspect` names them."
    if (dimension := manifest.dimension) is not None:
        yield f"Queries choose {describe_dimension(dimension)}."
    fallback = [layer for layer in manifest.layers if layer.op == ONNX_LAYER]
    for layer in fallback[:SHOWN_FALLBACK]:
        yield f"{layer.name} is left to {layer.note}."
    if len(fallback) > SHOWN_FALLBACK:
        yield f"{len(fallback) - SHOWN_FALLBACK} more layers are left to ONNX Runtime; `veltair inspect` lists them."
    if args.qos_ms is None:
        yield f"Its target, {manifest.qos_ns / 1e6:g} ms, is the file's or three times what it takes; --qos-ms sets it."
    origins = Counter(version.origin or "unknown" for layer in manifest.layers for version in layer.versions)
    yield f"Code versions by where they come from: {', '.join(f'{n} {origin}' for origin, n in origins.most_common())}."


def _int8_layers(manifest: Manifest) -> int:
    return sum(layer.op in INT8_PRODUCTS for layer in manifest.layers)


def reused(counts: CacheCounts) -> str:
    """What of the artifact is of earlier compiles; empty where nothing is."""
    parts = []
    if counts.objects_reused:
        parts.append(f"{counts.objects_reused} of {counts.objects_reused + counts.objects_built} kernels")
    if counts.tables_reused:
        tables = f"{counts.tables_reused} of {counts.tables_reused + counts.tables_measured} latency tables"
        parts.append(f"{tables}, measured on this machine since {counts.timed_since}")
    again = "; --fresh-timings measures again" if counts.tables_reused else ""
    return f"Reused from earlier compiles: {' and '.join(parts)}{again}." if parts else ""


def summary(artifact: Artifact) -> dict[str, str | int | float]:
    """The result of a compile in a few numbers."""
    manifest = artifact.manifest
    return {
        "model": manifest.model,
        "artifact": str(artifact.path),
        "digest": artifact.digest,
        "precision": manifest.precision,
        "tables": manifest.tables,
        "layers": len(manifest.layers),
        "versions": sum(len(layer.versions) for layer in manifest.layers),
        "max_batch": manifest.max_batch,
        "int8_layers": _int8_layers(manifest),
        "onnxruntime_layers": sum(layer.op == ONNX_LAYER for layer in manifest.layers),
        "levels": len(manifest.levels),
        "levels_modelled": manifest.level_sources.count("modelled"),
        "alone_ms": fastest_alone_ns(manifest) / 1e6,  # at batch 1, the best versions at their best core counts
        "qos_ms": manifest.qos_ns / 1e6,
        "weights_bytes": artifact.weights.stat().st_size,
    }
