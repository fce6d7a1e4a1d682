"""AI-MT (ISCA'20), an approximation: memory-bound layers are run beside compute-bound ones.

AI-MT interleaves sub-layers of an accelerator, whose weights are fetched ahead while others compute. A CPU has no
such engine to schedule; what remains of the idea is which blocks run side by side, and this policy decides that.
"""

from __future__ import annotations

from typing import NamedTuple

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.blocks import Budget
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Grow, Start, Step
from veltair.types import LayerBlock

MEMORY_BOUND = 0.5  # of the highest rate that a layer of the model reaches


class AiMt(Policy):
    """A memory-bound block starts when none runs, a compute-bound one when one does; another of the same kind only
    where no other is ready. All that run stay within a bandwidth budget, which a block alone may exceed.

    A block is neighbouring layers of one kind, on the fewest cores that hold their share of the QoS, with the conflict
    rule of the layer-wise baseline. Ties go round robin, to the query that has waited longest since its last block.

    It fails where all models are bound by the same resource: then it only holds blocks back. It has no deadlines.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("ai-mt")).__name__
    'AiMt'
    """

    def __init__(self, bytes_per_ns: float | None = None) -> None:
        """`bytes_per_ns`: the budget, by default the highest rate at which a layer of a model so far moves bytes."""
        self._given = bytes_per_ns
        self._models: dict[tuple[ProfileCosts, int], _Kinds] = {}

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        if not state.free:
            return None
        moving, running, memory_bound_runs = 0.0, False, False
        ready: list[ActiveQuery] = []
        for active in state.in_flight.values():
            run = active.run
            if run is None:
                ready.append(active)
                continue
            if missing := active.missing_cores(now_ns):
                return Grow(active, min(missing, state.free))
            running = True
            moving += run.bytes_per_ns
            memory_bound_runs |= self._kinds(active).memory_bound[run.block.start]
        if (head := state.head()) is not None:
            ready.append(head)
        ready.sort(key=lambda active: active.ready_ns)
        ready.sort(key=lambda active: self._kinds(active).memory_bound[active.next_layer] is memory_bound_runs)
        for active in ready:
            piece = self._kinds(active).piece(active)
            if not running or moving + piece.bytes_per_ns <= self._budget():
                block = LayerBlock(
                    active.query.id, active.next_layer, piece.stop, piece.versions, piece.cores, piece.predicted_ns
                )
                return Start(active, block, SOLO, piece.capped)
        return None

    def _kinds(self, active: ActiveQuery) -> _Kinds:
        key = (active.costs, active.qos_ns)
        kinds = self._models.get(key)
        if kinds is None:
            kinds = self._models[key] = _Kinds(*key)
        return kinds

    def _budget(self) -> float:
        return self._given or max(kinds.most for kinds in self._models.values())


class _Piece(NamedTuple):
    stop: int
    cores: int
    versions: tuple[int, ...]
    predicted_ns: int
    bytes_per_ns: float
    capped: bool


class _Kinds:
    """The kinds of one model's layers under one target, and its blocks."""

    def __init__(self, costs: ProfileCosts, qos_ns: int) -> None:
        self._costs = costs
        self._whole = Budget(qos_ns, costs.work[-1], costs.work)
        self._pieces: dict[int, _Piece] = {}
        rates = [self._cut(layer, layer + 1).bytes_per_ns for layer in range(costs.layers)]
        self.most = max(rates)
        self.memory_bound = [rate > MEMORY_BOUND * self.most for rate in rates]  # by layer

    def piece(self, active: ActiveQuery) -> _Piece:
        start = active.next_layer
        piece = self._pieces.get(start)
        if piece is None:
            stop = start + 1
            while stop < self._costs.layers and self.memory_bound[stop] is self.memory_bound[start]:
                stop += 1
            piece = self._pieces[start] = self._cut(start, stop)
        return piece

    def _cut(self, start: int, stop: int) -> _Piece:
        costs = self._costs
        cores, held = costs.cores_for(SOLO, start, stop, self._whole.share_ns(start, stop))
        time_ns = costs.time_ns(SOLO, cores, start, stop)
        rate = (costs.bytes[stop] - costs.bytes[start]) / time_ns
        return _Piece(stop, cores, costs.versions(SOLO, cores, start, stop), time_ns, rate, not held)
