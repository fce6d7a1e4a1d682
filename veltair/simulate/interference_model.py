"""What the speed of blocks depends on beside themselves: what a virtual machine asks to be told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol, TypeAlias

from veltair.scheduler.scheduler import Scheduler
from veltair.types import CoreSet, LayerBlock, ModelProfile

# How long a layer takes whatever runs beside it: (query, layer, version, cores) -> ns.
LayerTime = Callable[[int, int, int, int], int]
# When the layers of a block end, in ns since its begin, if nothing changes: 0 first, then one for each, ascending.
Timeline: TypeAlias = Sequence[float]

FRONT = -1  # stands for a query where the front end's own work is meant


class InterferenceModel(Protocol):
    """What the speed of blocks depends on: the machine, and who runs beside whom."""

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, grown: bool) -> float:
        """The block runs on this core set from now on. Returns the ns that pass before its next layer begins.

        `grown`: it, or the block that was stopped to make room for it, ran on fewer cores before.
        """

    def leave(self, query: int) -> None:
        """The query's block runs no more."""

    def changed(self) -> Iterable[tuple[int, Timeline]]:
        """Each query whose block goes differently since the last call, and how; those that entered are among them.

        FRONT is among them when the front end's work goes differently.
        """

    def attend(self, work_ns: float) -> None:
        """The front end turns to work of so many ns, on no core of its own; 0: it has none."""


class Alone:
    """Every block runs as if it had the machine to itself."""

    def __init__(self, layer_ns: LayerTime) -> None:
        self._layer_ns = layer_ns
        self._entered: list[tuple[LayerBlock, int]] = []
        self._front_ns = 0.0

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, grown: bool) -> float:
        self._entered.append((block, len(core_set)))
        return 0.0

    def leave(self, query: int) -> None:
        self._entered = [(block, cores) for block, cores in self._entered if block.query != query]

    def attend(self, work_ns: float) -> None:
        self._front_ns = work_ns

    def changed(self) -> Iterator[tuple[int, Timeline]]:
        if self._front_ns:
            yield FRONT, (0.0, self._front_ns)
            self._front_ns = 0.0
        for block, cores in self._entered:
            layers = enumerate(block.versions, block.start)
            times = (self._layer_ns(block.query, layer, version, cores) for layer, version in layers)
            yield block.query, list(accumulate(times, initial=0))
        self._entered.clear()


def solo_times(scheduler: Scheduler) -> LayerTime:
    """Every layer takes exactly what its profile says for a machine of its own."""

    def layer_ns(query: int, layer: int, version: int, cores: int) -> int:
        profile = scheduler.state.in_flight[query].costs.profile
        return profile.versions[layer][version].latency.latency_ns[0][cores - 1]

    return layer_ns
