"""Modelled profiles: from the shapes of a model's layers to its profile and its work on a machine model.

Code versions are chosen as the compiler chooses them (Alg. 1: candidates within the layer's share of the QoS, the
frontier of block size and parallelism, V of them, pruned at ten levels); the one that is best alone is always kept.

A pressure is the share of the L3 and of the memory bandwidth that others hold: ten pressures, from none to nine tenths.
Its interference level is how much it slows the models of a set on average (section 4.3), each on the cores that its
target needs alone, in the versions that are best there. So a level means the same pressure in every profile of the set,
and the same slowdown as is observed in blocks: these hold about that many cores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.tuning import frontier
from veltair.compiler.tuning.frontier import Candidate
from veltair.errors import ConfigError
from veltair.simulation.machine_model.batched_shapes import batch_model, timed_batch_sizes
from veltair.simulation.machine_model.folded_layers import FoldedLayer, fold_layers, fold_profile
from veltair.simulation.machine_model.layer_shapes import LayerShape, ModelShape, load_model_shape
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.measured_profiles import load_measured_models
from veltair.simulation.machine_model.roofline import ModelWork, Table, pressed_times_ns
from veltair.simulation.machine_model.tilings import TilingCandidates, enumerate_tilings
from veltair.simulation.simulation_scenario import SimulationScenario
from veltair.types import CodeVersion, LatencyTable, Layer, ModelProfile, TensorSpec

PRESSURES = tuple(i / 10 for i in range(10))
LevelCores: TypeAlias = Literal["need", "all"]


@dataclass(frozen=True, slots=True)
class SimulatedModel:
    """A model on a machine model: its profile for the scheduler, and its work for the simulated machine.

    ::

        models = model_profiles([load_model_shape("resnet50")], machine, {"resnet50": 15_000_000})
        models["resnet50"].profile.versions[0]  # code versions of the first layer
    """

    profile: ModelProfile
    work: ModelWork  # with the layers and versions of the profile, unless these are folded
    folded: tuple[FoldedLayer, ...] = ()  # the profile's layers, where they are not the operators of `work`


@dataclass(frozen=True, slots=True)
class _LayerCandidates:
    shape: LayerShape
    candidates: TilingCandidates
    times_ns: Table  # (candidates, pressures, cores)


def scenario_models(
    scenario: SimulationScenario,
    machine: MachineModel,
    *,
    cores: int | None = None,
    versions: int = frontier.VERSIONS,
    levels_on: LevelCores = "need",
) -> dict[str, list[SimulatedModel]]:
    """Returns the models of a scenario's tenants by name, ascending by batch.

    Artifacts have their measured profiles, models of the zoo those of `model_profiles`, their layers folded if the
    scenario says so. Where tenants give a model several targets, the tightest counts.
    """
    qos_ns: dict[str, int] = {}
    most: dict[str, int] = {}
    for tenant in scenario.tenants:
        qos_ns[tenant.model] = min(tenant.target_ns, qos_ns.get(tenant.model, tenant.target_ns))
        most[tenant.model] = max(tenant.max_batch, most.get(tenant.model, 1))
    count = len(machine.machine(cores).cores)
    found: dict[str, list[SimulatedModel]] = {}
    for model in qos_ns:
        if "/" in model:
            known = load_measured_models(Path(model), machine, count)
            found[model] = [SimulatedModel(replace(profile, model=model), work) for profile, work in known]
    wanted = {
        (model, batch): batch_model(load_model_shape(model), batch)
        for model in qos_ns
        if model not in found
        for batch in timed_batch_sizes(most[model])
    }
    if wanted:
        targets = {shape.model: qos_ns[model] for (model, _), shape in wanted.items()}
        shapes = list(wanted.values())
        analytic = model_profiles(shapes, machine, targets, cores=cores, versions=versions, levels_on=levels_on)
        for (model, batch), shape in wanted.items():
            each, by_batch = analytic[shape.model], found.setdefault(model, [])
            profile = replace(each.profile, model=model, batch=batch)
            folded: tuple[FoldedLayer, ...] = ()
            if scenario.load.layers == "products":
                folded = by_batch[0].folded if by_batch else fold_layers(shape, profile)
                profile = fold_profile(profile, folded)
            by_batch.append(SimulatedModel(profile, replace(each.work, model=model), folded))
    return found


def model_profiles(
    shapes: Sequence[ModelShape],
    machine: MachineModel,
    qos_ns: Mapping[str, int],
    *,
    cores: int | None = None,
    versions: int = frontier.VERSIONS,
    levels_on: LevelCores = "need",
) -> dict[str, SimulatedModel]:
    """Returns models that share their interference levels, by name.

    Args:
        shapes: the layers of each model.
        machine: the machine model.
        qos_ns: the target of each model, of which Alg. 1 gives each layer its share.
        cores: how many cores are in use, by default all.
        versions: the most code versions of a layer. 1 is a compiler without adaptive versions, which tunes for the
            whole machine (section 3.3: the default of TVM's search; Table 1: static).
        levels_on: the cores on which pressures are turned into levels: those that each model needs, or the mean over
            all counts, as an earlier reading had it.

    Raises ConfigError for fewer than one version, and for a core count that the machine does not have.
    """
    if versions < 1:
        raise ConfigError(f"versions: expected at least 1, got {versions}")
    count = len(machine.machine(cores).cores)
    known: dict[tuple[object, ...], _LayerCandidates] = {}
    by_model = {s.model: [_candidates(shape, machine, count, known) for shape in s.layers] for s in shapes}
    if levels_on == "need":
        levels = _levels([(of_model, qos_ns[model]) for model, of_model in by_model.items()])
    else:
        levels = _levels_on_all([layer for of_model in by_model.values() for layer in of_model])
    return {
        shape.model: _simulate(shape, by_model[shape.model], levels, machine, qos_ns[shape.model], versions)
        for shape in shapes
    }


def _candidates(
    shape: LayerShape, machine: MachineModel, cores: int, known: dict[tuple[object, ...], _LayerCandidates]
) -> _LayerCandidates:
    key = tuple(getattr(shape, field) for field in LayerShape.__dataclass_fields__ if field != "name")
    if key not in known:
        candidates = enumerate_tilings(shape, machine, cores)
        known[key] = _LayerCandidates(shape, candidates, pressed_ns(shape, candidates, machine))
    return known[key]


def pressed_ns(shape: LayerShape, candidates: TilingCandidates, machine: MachineModel) -> Table:
    """Returns times of a layer under each of PRESSURES as (candidates, pressures, cores)."""
    work = _work("", [(shape, candidates, range(len(candidates.points)))])
    return np.stack([pressed_times_ns(work, pressure, machine)[:, 0] for pressure in PRESSURES]).transpose(2, 0, 1)


def _work(model: str, chosen_of: Sequence[tuple[LayerShape, TilingCandidates, Sequence[int]]]) -> ModelWork:
    """Stacks the chosen candidates of each layer; missing versions take infinitely long."""
    chosen = [(t, np.asarray(at)) for _, t, at in chosen_of]
    most = max(len(at) for _, at in chosen)

    def stacked(field: str, missing: float) -> Table:
        padded = []
        for t, at in chosen:
            values = getattr(t, field)[at]
            filler = np.full((most - len(at), *values.shape[1:]), missing)
            padded.append(np.concatenate([values, filler]))
        return np.ascontiguousarray(np.moveaxis(np.stack(padded), 2, 0))  # (cores, layers, versions[, levels])

    need, moved = (np.ascontiguousarray(np.moveaxis(stacked(f, 0.0), -1, 1)) for f in ("need_bytes", "dram_bytes"))
    return ModelWork(
        model=model,
        compute_ns=stacked("compute_ns", np.inf),
        l3_bytes=stacked("l3_bytes", 0.0),
        remote_bytes=stacked("remote_bytes", 0.0),
        need_bytes=need,
        dram_bytes=moved,
        flops=np.array([shape.flops for shape, _, _ in chosen_of], float),
    )


def _levels(models: Sequence[tuple[Sequence[_LayerCandidates], int]]) -> tuple[float, ...]:
    """Returns the interference level of each pressure. `models`: the layers of each, and its target in ns."""
    slowdowns = []
    for layers, qos_ns in models:
        whole_ns = np.sum([layer.times_ns[:, 0].min(axis=0) for layer in layers], axis=0)  # (cores)
        in_time = np.flatnonzero(whole_ns <= qos_ns)
        cores = int(in_time[0] if len(in_time) else whole_ns.argmin())
        best = [layer.times_ns[layer.times_ns[:, 0, cores].argmin(), :, cores] for layer in layers]
        pressed_ns: NDArray[np.float64] = np.sum(best, axis=0)  # (pressures)
        slowdowns.append(pressed_ns / pressed_ns[0])
    means: NDArray[np.float64] = np.mean(slowdowns, axis=0)
    return tuple(round(float(level), 4) for level in means)


def _levels_on_all(known: Sequence[_LayerCandidates]) -> tuple[float, ...]:
    """The same as the mean over all layers and core counts: a pressure that slows blocks on 8 cores by 0.2 % reads 1.13
    there."""
    slowdowns = []
    for layer in known:
        alone = layer.times_ns[:, 0]
        best = alone.argmin(axis=0)
        columns = np.arange(alone.shape[1])
        slowdowns.append((layer.times_ns[best, :, columns] / layer.times_ns[best, 0, columns][:, None]).mean(axis=0))
    means: NDArray[np.float64] = np.mean(slowdowns, axis=0)
    return tuple(round(float(level), 4) for level in means)


def _simulate(
    shape: ModelShape,
    of_model: Sequence[_LayerCandidates],
    levels: tuple[float, ...],
    machine: MachineModel,
    qos_ns: int,
    versions: int,
) -> SimulatedModel:
    shares = frontier.layer_qos_ns([int(layer.times_ns[:, 0].min()) for layer in of_model], qos_ns)
    chosen = [_choose(layer, share, versions) for layer, share in zip(of_model, shares, strict=True)]
    works = [(s, layer.candidates, at) for s, layer, at in zip(shape.layers, of_model, chosen, strict=True)]
    sent, answered = 4 * shape.layers[0].inputs, 4 * shape.layers[-1].outputs  # fp32, whatever is computed in
    work = replace(_work(shape.model, works), in_bytes=float(sent), out_bytes=float(answered))
    rising = [i for i in range(len(levels)) if i == 0 or levels[i] > max(levels[:i])]
    tables = [
        tuple(
            CodeVersion(
                index,
                number,
                int(layer.candidates.block_size[at]),
                int(layer.candidates.parallelism[at]),
                f"layer{index}_{number}",
                LatencyTable(
                    tuple(levels[i] for i in rising),
                    tuple(tuple(max(1, round(t)) for t in layer.times_ns[at, i].tolist()) for i in rising),
                ),
            )
            for number, at in enumerate(ats)
        )
        for index, (layer, ats) in enumerate(zip(of_model, chosen, strict=True))
    ]
    item = machine.element_bytes
    described = tuple(_described(index, s, item) for index, s in enumerate(shape.layers))
    environment = {"machine": machine.title, "source": "analytic", "cores": str(work.cores)}
    return SimulatedModel(
        ModelProfile(shape.model, 1, described, tuple(tables), environment, shape.source_digest), work
    )


def _described(index: int, shape: LayerShape, item: int) -> Layer:
    dtype = {2: "bfloat16", 4: "float32"}[item]
    bytes_ = (shape.inputs + shape.extra + shape.second + shape.weights + shape.outputs) * item
    inputs = (TensorSpec("in", dtype, (shape.inputs,)),)
    return Layer(
        index, shape.name, shape.op, inputs, (TensorSpec("out", dtype, (shape.outputs,)),), shape.flops, bytes_
    )


def _choose(layer: _LayerCandidates, share_ns: float, versions: int) -> list[int]:
    """Returns the candidates that become code versions, by ascending block size."""
    times = layer.times_ns
    alone = times[:, 0]
    if versions == 1:
        return [int(alone[:, -1].argmin())]
    solo = int((alone / alone.min(axis=0)).max(axis=1).argmin())  # the least loss on its worst core count
    candidates = [
        Candidate({"at": at}, int(layer.candidates.block_size[at]), int(layer.candidates.parallelism[at]), run)
        for at, run in enumerate(tuple(map(int, row)) for row in alone.tolist())
    ]
    dominant = frontier.extract_dominant(c for c in candidates if c.best_ns <= share_ns)
    picked = [int(c.point["at"]) for c in frontier.pick_evenly(dominant, versions)]
    wanted = [solo, *(at for at in picked if at != solo)][:versions]
    kept = [wanted[i] for i in frontier.prune_versions(times[wanted].reshape(len(wanted), -1), protected=(0,))]
    return sorted(kept, key=lambda at: int(layer.candidates.block_size[at]))
