"""Samples of L3 counters and slowdowns, which `veltair profile --fit-proxy` fits: measured here, or simulated."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console
from rich.progress import track

from veltair.errors import ConfigError, VeltairError
from veltair.machine.hardware_counters import CountersMissingError, L3Counters
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.simulation.machine_model.counter_fit import SlowdownSample
from veltair.simulation.machine_model.machine_model import load_machine_model

CO_RUNNER_LOADS = tuple(i / 8 for i in range(9))  # share of the time in which the co-runners stream
WINDOWS = 6  # samples at each load
WINDOW_NS = 100_000_000


def measure_samples(path: Path, quiet: bool) -> list[SlowdownSample]:
    """Run an artifact's model on half of the cores beside co-runners on the rest, from idle to always streaming.

    Raises ConfigError on a single core, VeltairError where there are no L3 counters.
    """
    from veltair.commands.timing.engine_process import draw_input, load_veltair
    from veltair.compiler.timing.co_runners import run_co_runners

    cores = usable_machine().cores
    if len(cores) < 2:
        raise ConfigError("--live: expected two cores or more, one for the model and one for a co-runner")
    artifact = load_artifact(path)
    try:
        counters = L3Counters(cores)
    except CountersMissingError as error:
        raise VeltairError(
            f"no L3 counters here: {error.strerror}. Fit to samples of a machine that has them; without a counter "
            "model the interference level comes from observed slowdown"
        ) from None
    half = len(cores) // 2
    feeds = {port.name: draw_input(port, 1) for port in artifact.manifest.inputs}
    query = load_veltair(artifact, feeds, 1, half)
    loads = track(CO_RUNNER_LOADS, "co-runners", console=Console(stderr=True), transient=True, disable=quiet)
    try:
        return list(sample_slowdowns(query, counters, loads, lambda load: run_co_runners(cores[half:], load)))
    finally:
        counters.close()


def sample_slowdowns(
    query: Callable[[], object],
    counters: L3Counters,
    loads: Iterable[float],
    start_co_runners: Callable[[float], AbstractContextManager[None]],
) -> Iterator[SlowdownSample]:
    """Yield one sample per window. Its level is the query's median time over that of the windows of load 0.

    loads: shares of the time in which the co-runners stream; the first is 0.
    """
    alone_ns = 0.0
    for load in loads:
        windows = []
        with start_co_runners(load):
            query()
            for _ in range(WINDOWS):
                counters.sample(time.monotonic_ns())
                query_ns = _median_query_ns(query)
                windows.append((query_ns, counters.sample(time.monotonic_ns())))
        if load == 0:
            alone_ns = statistics.median(query_ns for query_ns, _ in windows)
        for query_ns, counts in windows:
            yield SlowdownSample(
                window_ns=counts.window_ns,
                l3_accesses=counts.l3_accesses,
                l3_misses=counts.l3_misses,
                level=max(1.0, query_ns / alone_ns),
            )


def _median_query_ns(query: Callable[[], object]) -> float:
    """Median time of the queries that begin within one window."""
    times: list[int] = []
    end_ns = time.monotonic_ns() + WINDOW_NS
    while (begin_ns := time.monotonic_ns()) < end_ns:
        query()
        times.append(time.monotonic_ns() - begin_ns)
    return statistics.median(times)


def simulate_samples(path: Path, machine: str) -> list[SlowdownSample]:
    """Samples of a scenario's models on a machine model, beside the co-runners of `measure_samples`."""
    from veltair.simulation.machine_model.calibration import calibrate
    from veltair.simulation.machine_model.modelled_profiles import scenario_models
    from veltair.simulation.simulation import Simulation
    from veltair.simulation.simulation_scenario import read_simulation_scenario

    model, scenario = load_machine_model(machine), read_simulation_scenario(path)
    simulation = Simulation(scenario, model, scenario_models(scenario, model))
    profiles = {name: by_batch[0] for name, by_batch in simulation.profiles.items()}
    return calibrate(model, simulation.machine, profiles, simulation.execution_rates)
