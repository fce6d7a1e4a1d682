"""How fast blocks run beside each other: what a virtual machine needs to know of the machine that it stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol, TypeAlias

from veltair.scheduler.scheduler import Scheduler
from veltair.types import CoreSet, LayerBlock, ModelProfile

# How long a layer takes, independent of what runs beside it: (query, layer, version, cores) -> ns.
LayerTime: TypeAlias = Callable[[int, int, int, int], int]
# When the layers of a block end, in ns since its begin, if nothing changes: 0 first, then one for each, ascending.
Timeline: TypeAlias = Sequence[float]


class InterferenceModel(Protocol):
    """How fast each block runs, given the machine and the blocks that run beside it."""

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, grown: bool) -> float:
        """The block runs on this core set from now on. Returns the ns that pass before its next layer begins.

        `grown`: it, or the block that was stopped to make room for it, ran on fewer cores before, and threads have to
        be spawned for the others.
        """

    def leave(self, query: int) -> None:
        """The query's block has ended."""

    def changed(self) -> Iterable[tuple[int | None, Timeline]]:
        """Each query whose block goes at another speed since the last call, and its timeline; blocks that entered are
        among them. None stands for the front end's work.
        """

    def set_front_end_work(self, work_ns: float) -> None:
        """The front end begins work of this many ns, on no core of its own; 0: it has none."""


class Alone:
    """Every block runs as if it had the machine to itself.

    >>> alone = Alone(lambda query, layer, version, cores: 10 * (layer + 1))
    >>> alone.enter(LayerBlock(7, 0, 2, (0, 0), 1, 0), (0,), profile=None, grown=False)
    0.0
    >>> list(alone.changed())
    [(7, [0, 10, 30])]
    """

    def __init__(self, layer_ns: LayerTime) -> None:
        self._layer_ns = layer_ns
        self._entered: list[tuple[LayerBlock, int]] = []
        self._front_ns = 0.0

    def enter(self, block: LayerBlock, core_set: CoreSet, profile: ModelProfile, grown: bool) -> float:
        self._entered.append((block, len(core_set)))
        return 0.0

    def leave(self, query: int) -> None:
        self._entered = [(block, cores) for block, cores in self._entered if block.query != query]

    def set_front_end_work(self, work_ns: float) -> None:
        self._front_ns = work_ns

    def changed(self) -> Iterator[tuple[int | None, Timeline]]:
        if self._front_ns:
            yield None, (0.0, self._front_ns)
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
