"""What it costs to keep fewer code versions of a layer than one for each pressure: the numbers of figure 7."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.paper import experiments as sim
from veltair.compiler.tuning import frontier
from veltair.scheduler.costs.level_grid import SOLO
from veltair.simulation.machine_model import modelled_profiles
from veltair.simulation.machine_model.layer_shapes import load_model_shape
from veltair.simulation.machine_model.tilings import enumerate_tilings


def version_losses(allowed: Sequence[float]) -> tuple[dict[str, list[float]], list[dict[int, int]]]:
    """Returns what it costs to keep fewer code versions than one for each pressure.

    All layers with products count, each on the cores that its model needs alone. First the mean loss of one to five
    versions at each pressure, then for each allowed loss how many layers need one, two, … versions. A single version
    is the fastest without pressure.
    """
    simulation = sim.workload_simulation("mix", 0.95, 5)
    losses: dict[str, list[NDArray[np.float64]]] = {str(count): [] for count in range(1, 6)}
    needed: list[dict[int, int]] = [{} for _ in allowed]
    for tenant in simulation.scenario.tenants:
        costs = sim.costs_of(simulation, tenant.model)
        cores, _ = costs.cores_for(SOLO, 0, costs.layers, tenant.target_ns)
        for shape in load_model_shape(tenant.model).layers:
            if shape.m:
                candidates = enumerate_tilings(shape, simulation.model, cores)
                times = modelled_profiles.pressed_ns(shape, candidates, simulation.model)
                _count_losses(times[:, :, cores - 1], losses, zip(allowed, needed, strict=True))
    return {count: np.mean(each, axis=0).tolist() for count, each in losses.items()}, needed


def _count_losses(
    times_ns: NDArray[np.float64], losses: Mapping[str, list[Any]], needed: Iterable[tuple[float, dict[int, int]]]
) -> None:
    """`times_ns`: (candidates, pressures)."""
    best, ten = times_ns.min(axis=0), times_ns[sorted(set(times_ns.argmin(axis=0).tolist()))]
    for count, found in losses.items():
        kept = times_ns[[times_ns[:, 0].argmin()]] if count == "1" else ten[frontier.drop_least_missed(ten, int(count))]
        found.append(kept.min(axis=0) / best - 1)
    for loss, counts in needed:
        least = len(frontier.prune_versions(ten, max_loss=loss))
        counts[least] = counts.get(least, 0) + 1
