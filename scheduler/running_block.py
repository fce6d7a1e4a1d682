"""A layer-block in execution: on which cores it runs, when it ends, and what it would take alone."""

from __future__ import annotations

from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.types import CoreSet, LayerBlock, State


class RunningBlock(State):
    """A block that runs now, as the scheduler sees it. Not to be confused with the server's message of that name.

    ::

        run = state.in_flight[7].run  # of the query 7
        run.bytes_per_ns  # memory bandwidth that it needs, in GB/s
    """

    block: LayerBlock
    level: int  # grid index: its versions are the best at it on the cores that it wanted
    costs: ProfileCosts
    core_set: CoreSet  # granted; the worker has taken up those of the last stretch
    stretches: list[tuple[int, int]]  # (first layer, cores), ascending: how the core count changed
    predicted_ns: int  # on the cores that it really has, at the level of its start
    ends_ns: int  # expected
    soon_ns: int  # when it is soon to finish: what remains is within 10 % of the prediction (section 4.3)
    growable: bool  # it has fewer cores than it wanted, and an opportunity to take up more

    @property
    def bytes_per_ns(self) -> float:
        """The memory bandwidth that it needs by its profile."""
        moved = self.costs.bytes
        return (moved[self.block.stop] - moved[self.block.start]) / max(self.predicted_ns, 1)

    def core_ns_left(self, now_ns: int) -> int:
        """Cores x time until its end, on the cores that it has taken up."""
        return max(self.ends_ns - now_ns, 0) * self.stretches[-1][1]

    def grant(self, more: CoreSet) -> None:
        """Grants more cores, which the worker takes up later."""
        self.core_set = tuple(sorted(self.core_set + more))
        self.growable = len(self.core_set) < self.block.cores

    def take_up(self, layer: int, cores: int, now_ns: int) -> None:
        """The block goes on with `layer` on that many cores; the prediction of the rest follows."""
        ends_ns = now_ns + _rescaled_ns(self.block, self.level, self.costs, layer, cores)
        self.predicted_ns += ends_ns - self.ends_ns
        self.ends_ns = ends_ns
        self.soon_ns = ends_ns - self.predicted_ns // 10
        self.stretches.append((layer, cores))

    def solo_ns(self, stop: int) -> int:
        """What the layers up to `stop` take alone on the machine, each on the cores that it really had."""
        block, costs = self.block, self.costs
        if len(self.stretches) == 1 and self.stretches[0][1] == block.cores:
            return costs.alone_ns(self.level, block.cores, block.start, stop)
        ends = [layer for layer, _ in self.stretches[1:]] + [stop]
        return sum(
            costs.solo_ns(block.versions, block.start, start, min(end, stop), cores)
            for (start, cores), end in zip(self.stretches, ends, strict=True)
        )

    def layer_at(self, now_ns: int) -> int:
        """The layer that should be in execution now if all goes as predicted; always one of the block's."""
        block, (layer, cores) = self.block, self.stretches[-1]
        if now_ns >= self.ends_ns:
            return block.stop - 1
        of_ns = self.predicted_ns
        if len(self.stretches) > 1:
            of_ns = _rescaled_ns(block, self.level, self.costs, layer, cores)
        return self.costs.layer_at(SOLO, cores, layer, block.stop, self.ends_ns - now_ns, max(of_ns, 1))


class BlockGrowth:
    """How a running block takes up cores that are granted to it: at the boundary between two layers.

    This is what the daemon's workers do. A machine that does otherwise gives the scheduler a subclass.

    >>> BlockGrowth().can_grow(LayerBlock(query=1, start=0, stop=1, versions=(0,), cores=4, predicted_ns=100))
    False
    """

    def can_grow(self, block: LayerBlock) -> bool:
        """Whether the block has an opportunity to take up more cores after its start."""
        return block.stop - block.start > 1

    def knows_solo_time(self, run: RunningBlock) -> bool:
        """Whether `run.solo_ns` is what the block takes alone, although its cores changed."""
        return True


def begin_block(
    block: LayerBlock, level: int, costs: ProfileCosts, core_set: CoreSet, now_ns: int, growth: BlockGrowth
) -> RunningBlock:
    """The block as it begins now."""
    cores = len(core_set)
    predicted_ns, growable = block.predicted_ns, False
    if cores < block.cores:
        predicted_ns = _rescaled_ns(block, level, costs, block.start, cores)
        growable = growth.can_grow(block)
    ends_ns = now_ns + predicted_ns
    soon_ns = ends_ns - predicted_ns // 10
    return RunningBlock(block, level, costs, core_set, [(block.start, cores)], predicted_ns, ends_ns, soon_ns, growable)


def _rescaled_ns(block: LayerBlock, level: int, costs: ProfileCosts, start: int, cores: int) -> int:
    """The prediction for layers [start, block.stop) on other cores.

    The code versions stay those picked for `block.cores` at the level; their solo times give the ratio.
    """
    here = costs.solo_ns(block.versions, block.start, start, block.stop, cores)
    return block.predicted_ns * here // costs.alone_ns(level, block.cores, block.start, block.stop)
