"""Work in virtual time whose speed may change while it runs: a block, or what the front end does."""

from __future__ import annotations

from bisect import bisect_right

from veltair.simulation.interference_model import Timeline
from veltair.types import CoreSet, LayerBlock, State

UNKNOWN: Timeline = (0.0,)  # until the interference model has said how fast the work goes


class Execution(State):
    """Work of one or more layers, and how far it is.

    >>> execution = Execution(layers=2, since_ns=0.0, timeline=(0.0, 10.0, 20.0))
    >>> execution.current_layer(15.0)
    1
    >>> execution.follow((0.0, 20.0, 40.0), 15.0)
    >>> execution.done_ns  # half of the second layer
    30.0
    """

    layers: int
    since_ns: float  # when it was at `done_ns` of its timeline; in the future while it waits for cores to wake
    timeline: Timeline = UNKNOWN
    done_ns: float = 0.0
    entry: int = 0  # the number of its entry in the queue that counts; others are out of date
    halt: int = 0  # layers that are done at that entry

    @property
    def halts_at_next_layer(self) -> bool:
        """Whether something is to happen at the next boundary between two layers."""
        return False

    def current_layer(self, now_ns: float) -> int:
        """Advances to now and returns how many layers are done; the last one counts as not done."""
        if now_ns > self.since_ns:
            self.done_ns += now_ns - self.since_ns
            self.since_ns = now_ns
        layer = bisect_right(self.timeline, self.done_ns) - 1
        return layer if layer < self.layers else self.layers - 1

    def follow(self, timeline: Timeline, now_ns: float) -> None:
        """Keeps the done share of the layer in execution; the rest goes as the new timeline says."""
        before = self.timeline
        layer = self.current_layer(now_ns)
        took_ns, takes_ns = before[layer + 1] - before[layer], timeline[layer + 1] - timeline[layer]
        share = (self.done_ns - before[layer]) / took_ns if took_ns else 0.0
        self.timeline, self.done_ns = timeline, timeline[layer] + (share if share < 1.0 else 1.0) * takes_ns


class BlockExecution(Execution, kw_only=True):
    """A block that runs; `VirtualMachine` makes one for each StartBlock.

    >>> block = LayerBlock(query=7, start=0, stop=2, versions=(0, 1), cores=1, predicted_ns=100)
    >>> run = BlockExecution(2, 0.0, block=block, granted=(0,), core_set=(0,), began_ns=0, stop_early=True)
    >>> run.halts_at_next_layer
    True
    """

    block: LayerBlock
    granted: CoreSet
    core_set: CoreSet  # in use
    began_ns: int
    cancelled: int | None = None  # the last query that waited for it
    stop_early: bool = False
    grown_layer: int = -1  # the last one inside which it grew

    @property
    def halts_at_next_layer(self) -> bool:
        return self.granted is not self.core_set or self.stop_early or self.cancelled is not None
