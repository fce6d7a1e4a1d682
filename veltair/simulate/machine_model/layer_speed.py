"""How fast the layers of a model go on a machine model, by what the neighbours of their block ask for.

Neighbours press on a block in two ways, each a number relative to what there is: what they would keep of the L3
domains that it runs on, and the memory bandwidth that they would use if nothing held them back. Both are taken to
twelve levels, so that everything which follows from them is computed once.

- L3: a layer that wants w of its domains' C bytes keeps all of it while there is room for it and the pressure, and
  C w / (w + pressure) where there is not: in proportion to what each wants.
- Memory: a layer can draw at most what its cores and links let through, cores the less the more the neighbours use,
  as memory then takes longer to answer. Together with the pressure that may be more than the memory gives; then it
  gets the proportion that is its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf

import numpy as np

from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.roofline import (
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
LEVEL_BOUNDS = (-inf, *_BETWEEN, inf)  # level i is nearest from the i-th up to the next


# Index of the nearest of PRESSURES to a pressure.
pressure_level: Callable[[float], int] = partial(bisect_right, _BETWEEN)


@dataclass(slots=True, eq=False)
class Stretch:
    """Consecutive layers in given code versions on so many cores in so many L3 domains."""

    pace: Pace
    layers: slice
    versions: list[int]
    cores: int
    domains: int
    want_bytes: float  # of L3, all domains together: mean over the time that its layers take alone
    _demands: dict[int, int] = field(default_factory=dict)
    _courses: dict[int, list[float]] = field(default_factory=dict)

    def demand(self, cache: int) -> int:
        """Bytes per s that it would draw from memory under this L3 pressure (a level) if no one else did."""
        known = self._demands.get(cache)
        if known is None:
            moved = self.pace.moved_bytes(self.cores, self.domains, cache)[self.layers]
            took_ns = self.course(cache, 0)[-1]
            known = self._demands[cache] = round(float(self._of_versions(moved).sum()) / took_ns * 1e9)
        return known

    def course(self, cache: int, memory: int) -> list[float]:
        """When its layers end, in ns since its begin, under these pressures (levels); 0 first."""
        key = cache * len(PRESSURES) + memory
        known = self._courses.get(key)
        if known is None:
            times = self._of_versions(self.pace.times_ns(self.cores, self.domains, cache, memory)[self.layers])
            known = self._courses[key] = [0.0, *np.cumsum(times).tolist()]
        return known

    def _of_versions(self, table: Table) -> Table:
        return table[range(len(self.versions)), self.versions]


class Pace:
    """One model on one machine model. Only grows, so that runs may share it."""

    def __init__(self, work: ModelWork, machine: MachineModel) -> None:
        self.work, self.machine = work, machine
        self._stretches: dict[tuple[int, tuple[int, ...], int, int], Stretch] = {}
        self._times: dict[tuple[int, int, int, int], Table] = {}

    def stretch(self, start: int, versions: tuple[int, ...], cores: int, domains: int) -> Stretch:
        """The layers from `start` on, `versions[0]` being the first one's."""
        key = start, versions, cores, domains
        known = self._stretches.get(key)
        if known is None:
            known = Stretch(self, slice(start, start + len(versions)), list(versions), cores, domains, 0.0)
            rows = range(start, start + len(versions)), known.versions
            times, wants = self.times_ns(cores, domains, 0, 0)[rows], self._wants(cores, domains)[rows]
            capacity = domains * self.machine.l3_bytes
            known.want_bytes = float((np.minimum(wants, capacity) * times).sum() / times.sum())
            self._stretches[key] = known
        return known

    def times_ns(self, cores: int, domains: int, cache: int, memory: int) -> Table:
        """(layers, versions), under these pressures (levels)."""
        key = cores, domains, cache, memory
        known = self._times.get(key)
        if known is None:
            latency = self.machine.memory_latency(PRESSURES[memory])
            kept, share = self._kept_bytes(cores, domains, cache), self._share_gb_s(cores, domains, memory, latency)
            known = self._times[key] = layer_ns(self.work, cores, domains, kept, share, latency, self.machine)
        return known

    def moved_bytes(self, cores: int, domains: int, cache: int) -> Table:
        """(layers, versions): from and to memory."""
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
