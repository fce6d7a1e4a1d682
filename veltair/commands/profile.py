"""`veltair profile`: what is measured of a machine and of models on it, after they are compiled.

`--fit-proxy` fits the interference proxy to hardware counters (VELTAIR sec. 4.3, Fig. 11); `--within-model` times whole
models, and has the layers' times in their artifacts add up to that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table

from veltair.errors import ConfigError, VeltairError
from veltair.machine.hardware_counters import CountersMissingError, L3Counters
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.runtime import pinned_threads, whole_model_timing
from veltair.simulate.machine_model.counter_fit import (
    CounterFit,
    SlowdownSample,
    encode_samples,
    fit_counters,
    read_samples,
)
from veltair.simulate.machine_model.machine_model import load_machine_model, machine_names

GRADES = tuple(i / 8 for i in range(9))  # of co-runners: the share of the time in which they stream
WINDOWS = 6  # at each
WINDOW_NS = 100_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fit-proxy", action="store_true", help="fit the interference level to L3 counters")
    what.add_argument(
        "--within-model", type=Path, nargs="+", metavar="ARTIFACT",
        help="time whole models, and scale the times of their layers to it",
    )  # fmt: skip
    source = parser.add_mutually_exclusive_group()
    source.add_argument("samples", nargs="?", type=Path, metavar="SAMPLES.json", help="counters and measured levels")
    source.add_argument("--live", type=Path, metavar="ARTIFACT", help="measure them here, beside co-runners")
    source.add_argument("--simulated", type=Path, metavar="SCENARIO.toml", help="take a machine model's")
    parser.add_argument(
        "--machine", default="threadripper-3990x", metavar="M", help=f"of --simulated: {', '.join(machine_names())}"
    )
    parser.add_argument("--save-samples", type=Path, metavar="FILE", help="keep what was measured or simulated")
    parser.add_argument("--out", type=Path, metavar="FILE", help="coefficients, for server.counter_model")
    parser.add_argument("--json", action="store_true", help="print the fit as JSON")


def run(args: argparse.Namespace) -> int:
    """0: done. Raises UserError for bad samples and artifacts, VeltairError where there are no counters."""
    if args.within_model is not None:
        return within_model(args.within_model, args.json)
    if args.live is args.simulated is args.samples is None:
        raise ConfigError("--fit-proxy: expected SAMPLES.json, --live ARTIFACT or --simulated SCENARIO.toml")
    if args.live is not None:
        samples, where = live(args.live, args.json), f"--live {args.live}"
    elif args.simulated is not None:
        samples, where = simulated(args.simulated, args.machine), f"--simulated {args.simulated}"
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
        _print(found)
    return 0


def within_model(paths: Sequence[Path], as_json: bool) -> int:
    """Shows each model's time by core count, at its smallest batch, before and after."""
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


def live(path: Path, quiet: bool) -> list[SlowdownSample]:
    """The artifact's model on half of the cores beside co-runners on the rest, graded from none to always."""
    from veltair.commands.engine_process import draw_input, load_veltair
    from veltair.compiler.timing.co_runners import pressing
    from veltair.machine.topology import usable_machine

    cores = usable_machine().cores
    if len(cores) < 2:
        raise ConfigError("--live: expected two cores or more, one for the model and one for a co-runner")
    known = load_artifact(path)
    try:
        counters = L3Counters(cores)
    except CountersMissingError as error:
        raise VeltairError(
            f"no L3 counters here: {error.strerror}. Fit to samples of a machine that has them; without a counter "
            "model the interference level comes from observed slowdown"
        ) from None
    half = len(cores) // 2
    feeds = {port.name: draw_input(port, 1) for port in known.manifest.inputs}
    query = load_veltair(known, feeds, 1, half)
    steps = track(GRADES, "co-runners", console=Console(stderr=True), transient=True, disable=quiet)
    try:
        return list(_measured(query, counters, steps, lambda grade: pressing(cores[half:], grade)))
    finally:
        counters.close()


def _measured(
    query: Callable[[], object],
    counters: L3Counters,
    grades: Iterable[float],
    pressed: Callable[[float], AbstractContextManager[None]],
) -> Iterator[SlowdownSample]:
    """A sample a window; its level is the query's median time over that of all windows with no co-runner at work."""
    alone_ns = 0.0
    for grade in grades:
        windows = []
        with pressed(grade):
            query()
            for _ in range(WINDOWS):
                counters.sample(time.monotonic_ns())
                took_ns = _timed(query, WINDOW_NS)
                windows.append((took_ns, counters.sample(time.monotonic_ns())))
        if grade == 0:
            alone_ns = statistics.median(took_ns for took_ns, _ in windows)
        for took_ns, seen in windows:
            level = max(1.0, took_ns / alone_ns)
            yield SlowdownSample(
                window_ns=seen.window_ns, l3_accesses=seen.l3_accesses, l3_misses=seen.l3_misses, level=level
            )


def _timed(query: Callable[[], object], window_ns: int) -> float:
    """Median time of the queries that begin within a window."""
    times: list[int] = []
    end_ns = time.monotonic_ns() + window_ns
    while (begin_ns := time.monotonic_ns()) < end_ns:
        query()
        times.append(time.monotonic_ns() - begin_ns)
    return statistics.median(times)


def simulated(path: Path, name: str) -> list[SlowdownSample]:
    """The scenario's models on a machine model, beside co-runners as `live` has them."""
    from veltair.simulate.machine_model.calibration import calibrate
    from veltair.simulate.machine_model.modelled_profiles import scenario_models
    from veltair.simulate.simulation import Simulation
    from veltair.simulate.simulation_scenario import read_simulation_scenario

    model, scenario = load_machine_model(name), read_simulation_scenario(path)
    known = Simulation(scenario, model, scenario_models(scenario, model))
    profiles = {name: by_batch[0] for name, by_batch in known.profiles.items()}
    return calibrate(model, known.machine, profiles, known.execution_rates)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _print(found: CounterFit) -> None:
    console = Console(highlight=False)
    console.print(
        f"level = {found.constant:.4g} + {found.per_miss_rate:.4g} x L3 miss rate "
        f"+ {found.per_access_per_ns:.4g} x L3 accesses per ns\n"
        f"{found.samples} samples, R2 {found.r2:.3f}, cross-validated {found.r2_cross_validated:.3f}\n"
    )
    shown = found.components[:2]
    headings = ("counter", "R2 alone", *(f"component {i}: {c.variance:.1%}" for i, c in enumerate(shown, 1)))
    table = Table(*headings, box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for name, r2 in found.r2_alone.items():
        table.add_row(name, f"{r2:.3f}", *(f"{component.loadings[name]:+.2f}" for component in shown))
    console.print(table)
