"""`veltair profile`: measurements of compiled models and of the machine.

`--fit-proxy` fits the interference proxy to hardware counters (VELTAIR sec. 4.3, Fig. 11); `--within-model` times whole
models, and scales the layers' times in their artifacts so that they add up to that.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track

from veltair.commands import refuse_to_overwrite
from veltair.commands.timing.slowdown_samples import measure_samples, simulate_samples
from veltair.errors import ConfigError
from veltair.machine.whole_file import whole_file
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.runtime import pinned_threads, whole_model_timing
from veltair.simulation.machine_model.counter_fit import (
    CounterFit,
    encode_samples,
    fit_counters,
    read_samples,
)
from veltair.simulation.machine_model.machine_model import machine_names
from veltair.terminal import Column, ResultTable, confirm, result_console


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fit-proxy", action="store_true", help="fit the interference level to L3 counters")
    scale = "time whole models, and scale the times of their layers to it"
    what.add_argument("--within-model", type=Path, nargs="+", metavar="ARTIFACT", help=scale)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("samples", nargs="?", type=Path, metavar="SAMPLES.json", help="counters and measured levels")
    source.add_argument("--live", type=Path, metavar="ARTIFACT", help="measure them here, beside co-runners")
    source.add_argument("--simulated", type=Path, metavar="SCENARIO.toml", help="take a machine model's")
    parser.add_argument(
        "--machine", default="threadripper-3990x", metavar="M", help=f"of --simulated: {', '.join(machine_names())}"
    )
    parser.add_argument("--yes", action="store_true", help="let --within-model rewrite the artifacts without asking")
    parser.add_argument("--force", action="store_true", help="overwrite the files of --out and --save-samples")
    parser.add_argument("--save-samples", type=Path, metavar="FILE", help="keep what was measured or simulated")
    parser.add_argument("--out", type=Path, metavar="FILE", help="coefficients, for server.counter_model")
    parser.add_argument("--json", action="store_true", help="print the fit as JSON")
    parser.epilog = """\
examples:
  veltair profile --within-model artifacts/resnet50
  veltair profile --fit-proxy --simulated scenario.toml --out counters.json"""


def run(args: argparse.Namespace) -> int:
    """0: done. Raises UserError for bad samples and artifacts, VeltairError where there are no counters."""
    if args.within_model is not None:
        named = ", ".join(map(str, args.within_model))
        if not (args.yes or confirm(f"{named}: write other layer times into it?")):
            raise ConfigError(f"{named}: --within-model rewrites artifacts, and needs a yes, or --yes")
        return _scale_to_whole_models(args.within_model, args.json)
    for path in (args.out, args.save_samples):  # before minutes of measurement
        refuse_to_overwrite(path, force=args.force)
    if args.live is args.simulated is args.samples is None:
        raise ConfigError("--fit-proxy: expected SAMPLES.json, --live ARTIFACT or --simulated SCENARIO.toml")
    if args.live is not None:
        samples, where = measure_samples(args.live, args.json), f"--live {args.live}"
    elif args.simulated is not None:
        samples, where = simulate_samples(args.simulated, args.machine), f"--simulated {args.simulated}"
    else:
        samples, where = read_samples(args.samples), str(args.samples)
    if args.save_samples is not None:
        _write(args.save_samples, encode_samples(samples))
    found = fit_counters(samples, where)
    content = msgspec.json.format(msgspec.json.encode(found), indent=1)
    if args.out is not None:
        _write(args.out, content + b"\n")
    if args.json:
        print(content.decode())
    else:
        _show(found)
    return 0


def _scale_to_whole_models(paths: Sequence[Path], as_json: bool) -> int:
    """Scale each artifact, and show its model's time by core count at its smallest batch, before and after."""
    os.environ.update(pinned_threads.kernel_environment())  # before TVM is loaded
    rows = []
    for path in track(paths, "models", console=Console(stderr=True), transient=True, disable=as_json):
        before = load_artifact(path)
        after = whole_model_timing.scale_to_whole_model(before)
        sums_ms = [
            [ns / 1e6 for ns in whole_model_timing.sum_layer_times(each.manifest)[0]] for each in (before, after)
        ]
        rows.append({"model": after.manifest.model, "layers_ms": sums_ms[0], "whole_ms": sums_ms[1]})
    if as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            ratios = (f"{b:.2f} -> {a:.2f}" for b, a in zip(row["layers_ms"], row["whole_ms"], strict=True))
            print(f"{row['model']}: ms on 1, 2, … cores: {', '.join(ratios)}")
    return 0


def _write(path: Path, content: bytes) -> None:
    try:
        with whole_file(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _show(found: CounterFit) -> None:
    console = result_console()
    console.print(
        f"level = {found.constant:.4g} + {found.per_miss_rate:.4g} x L3 miss rate "
        f"+ {found.per_access_per_ns:.4g} x L3 accesses per ns\n"
        f"{found.samples} samples, R2 {found.r2:.3f}, cross-validated {found.r2_cross_validated:.3f}\n",
        soft_wrap=True,
    )
    shown = found.components[:2]
    components = [Column(f"component {i}:\n{c.variance:.1%}") for i, c in enumerate(shown, 1)]
    table = ResultTable((Column("counter", is_name=True), Column("R2 alone"), *components))
    for name, r2 in found.r2_alone.items():
        table.add(name, f"{r2:.3f}", *(f"{component.loadings[name]:+.2f}" for component in shown))
    table.print(console)
