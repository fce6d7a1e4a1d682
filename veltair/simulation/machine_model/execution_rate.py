"""How fast the layers of a model run on a machine model, by the pressure of the co-runners of their block.

Co-runners press on a block in up to three ways, each a number relative to the machine's capacity: what they would keep
of the L3 domains that the block runs on, and the bandwidth of memory and of the domains' links that they would use if
nothing held them back. All are rounded to twelve levels, so that everything that follows from them is computed once.

- L3: a layer that wants w of its domains' C bytes keeps all of it while there is room for w and the pressure, else
  C w / (w + pressure), in proportion to what each wants.
- Links, where the machine model has them shared: what co-runners would draw over the links of the domains that the
  block shares with them. Where demand and pressure together exceed a link's bandwidth, the layer gets its proportion.
- Memory: a layer draws at most what its cores and links let through; cores draw the less the more the co-runners use,
  because memory then takes longer to answer. Where demand and pressure together exceed the memory's bandwidth, the
  layer gets its proportion.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from math import inf

import numpy as np

from veltair.simulation.machine_model.folded_layers import FoldedLayer
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.roofline import (
    ModelWork,
    Table,
    dram_bytes,
    footprint_bytes,
    layer_ns,
    link_gb_s,
    sharing_cores,
)

PRESSURES = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_BETWEEN = [(low + high) / 2 for low, high in pairwise(PRESSURES)]
LEVEL_BOUNDS = (-inf, *_BETWEEN, inf)  # level i is the nearest from the i-th bound up to the next


# pressure_level(pressure): the index of the nearest of PRESSURES.
pressure_level: Callable[[float], int] = partial(bisect_right, _BETWEEN)


@dataclass(slots=True, eq=False)
class Segment:
    """Consecutive layers in given code versions on a number of cores in a number of L3 domains.

    ::

        segment = rate.segment(start=0, versions=(0, 2, 1), cores=4, domains=1)
        segment.timeline(cache=0, memory=0)  # alone: [0.0, end of layer 0, end of layer 1, end of layer 2]
    """

    rate: ExecutionRate  # of the model
    layers: slice  # of the model's operators
    versions: list[int]  # of each operator
    ends: list[int] | None  # by layer: how many operators are done at its end; None: each layer is one operator
    cores: int
    domains: int
    want_bytes: float  # of L3 in all domains together: the mean over the time that the layers take alone
    _demands: dict[int, int] = field(default_factory=dict)
    _timelines: dict[int, list[float]] = field(default_factory=dict)

    def demand(self, cache: int) -> int:
        """Returns its demand on otherwise idle memory in bytes per s under this L3 pressure (a level)."""
        known = self._demands.get(cache)
        if known is None:
            moved = self.rate.moved_bytes(self.cores, self.domains, cache)[self.layers]
            took_ns = self.timeline(cache, 0)[-1]
            known = self._demands[cache] = round(float(self._select_versions(moved).sum()) / took_ns * 1e9)
        return known

    def timeline(self, cache: int, memory: int, link: int = 0) -> list[float]:
        """Returns when its layers end under these pressures (levels), in ns since its begin; the first item is 0."""
        key = (link * len(PRESSURES) + cache) * len(PRESSURES) + memory
        known = self._timelines.get(key)
        if known is None:
            every = self.rate.times_ns(self.cores, self.domains, cache, memory, link)
            times = self._select_versions(every[self.layers])
            sums: list[float] = np.cumsum(times).tolist()
            known = [0.0, *(sums if self.ends is None else [sums[end - 1] for end in self.ends])]
            self._timelines[key] = known
        return known

    def _select_versions(self, table: Table) -> Table:
        return table[range(len(self.versions)), self.versions]


class ExecutionRate:
    """Times of one model's layers on one machine model. What it computes is kept, so that runs share it.

    ::

        rate = ExecutionRate(work, machine)
        rate.times_ns(cores=4, domains=1, cache=0, memory=0)  # (layers, versions), alone
    """

    def __init__(self, work: ModelWork, machine: MachineModel, folded: Sequence[FoldedLayer] = ()) -> None:
        """`folded`: the layers that the scheduler knows, where they are not the operators of `work`."""
        self.work, self.machine, self.folded = work, machine, folded
        self._stretches: dict[tuple[int, tuple[int, ...], int, int], Segment] = {}
        self._times: dict[tuple[int, int, int, int, int], Table] = {}

    def segment(self, start: int, versions: tuple[int, ...], cores: int, domains: int) -> Segment:
        """Returns the segment that begins at layer `start`, whose version is `versions[0]`."""
        key = start, versions, cores, domains
        known = self._stretches.get(key)
        if known is None:
            layers, of_operators, ends = self._operators(start, versions)
            known = Segment(self, layers, of_operators, ends, cores, domains, 0.0)
            rows = range(layers.start, layers.stop), known.versions
            times, wants = self.times_ns(cores, domains, 0, 0)[rows], self._wants(cores, domains)[rows]
            capacity = domains * self.machine.l3_bytes
            known.want_bytes = float((np.minimum(wants, capacity) * times).sum() / times.sum())
            self._stretches[key] = known
        return known

    def _operators(self, start: int, versions: tuple[int, ...]) -> tuple[slice, list[int], list[int] | None]:
        """Returns the operators of the layers that begin at `start`, their versions, and the ends of the layers."""
        if not self.folded:
            return slice(start, start + len(versions)), list(versions), None
        layers = self.folded[start : start + len(versions)]
        first = layers[0].start
        chosen = [layer.operator_versions(version) for layer, version in zip(layers, versions, strict=True)]
        ends = [layer.stop - first for layer in layers]
        return slice(first, layers[-1].stop), list(chain.from_iterable(chosen)), ends

    def times_ns(self, cores: int, domains: int, cache: int, memory: int, link: int = 0) -> Table:
        """Returns times of operators in ns as (layers, versions) under these pressures (levels)."""
        key = cores, domains, cache, memory, link
        known = self._times.get(key)
        if known is None:
            latency = self.machine.memory_latency(PRESSURES[memory])
            kept, share = self._kept_bytes(cores, domains, cache), self._share_gb_s(cores, domains, memory, latency)
            links = self._link_share(cores, domains, latency, link)
            known = self._times[key] = layer_ns(self.work, cores, domains, kept, share, latency, self.machine, links)
        return known

    def _link_share(self, cores: int, domains: int, latency: float, link: int) -> float:
        """Returns the share of what its links let through alone that a block gets beside this pressure on them."""
        capacity = domains * self.machine.domain_gb_s
        alone = float(link_gb_s(cores, domains, latency, self.machine))
        together = alone + PRESSURES[link] * capacity
        return 1.0 if together <= capacity else capacity / together

    def moved_bytes(self, cores: int, domains: int, cache: int) -> Table:
        """Returns the bytes from and to memory as (layers, versions)."""
        sharing = sharing_cores(self.work, cores, domains, self.machine)
        return dram_bytes(self.work, sharing, self._kept_bytes(cores, domains, cache))

    def _wants(self, cores: int, domains: int) -> Table:
        return footprint_bytes(self.work, sharing_cores(self.work, cores, domains, self.machine))

    def _kept_bytes(self, cores: int, domains: int, cache: int) -> Table:
        capacity, wants = domains * self.machine.l3_bytes, self._wants(cores, domains)
        together = wants + PRESSURES[cache] * capacity
        return np.where(together <= capacity, wants, capacity * wants / np.maximum(together, 1.0))

    def _share_gb_s(self, cores: int, domains: int, memory: int, latency: float) -> float:
        machine = self.machine
        most = min(float(link_gb_s(cores, domains, latency, machine)), machine.dram_gb_s)
        together = most + PRESSURES[memory] * machine.dram_gb_s
        return most if together <= machine.dram_gb_s else machine.dram_gb_s * most / together
