"""Blocks of a fixed number of layers: 1, 6 or 11 (VELTAIR section 3.2), and VELTAIR-AC (section 5.1)."""

from __future__ import annotations

from typing import NamedTuple

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.blocks import whole_budget
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.serving_order import BlockPolicy, ServingOrder
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Start
from veltair.types import LayerBlock


class FixedBlocks(BlockPolicy):
    """Every block gets the fewest cores that hold its layers' share of the target, or the fastest count if none do.

    With one layer a block this is what section 3.2 calls similar to Planaria. A conflict starts with what is free and
    grows; who gets cores is `ServingOrder`'s.

    It fails at both ends of the block length: short blocks conflict often, since each asks for the peak of its own
    layers; long ones hold the cores of their hungriest layer throughout. Nothing is refused under overload.

    >>> from veltair.scheduler.policies.by_name import make_policy
    >>> type(make_policy("block-6")).__name__  # FixedBlocks(6)
    'FixedBlocks'
    """

    def __init__(self, layers: int, *, adapt_versions: bool = False, order: ServingOrder | None = None) -> None:
        """`adapt_versions`: needs and versions are those of the level of the moment (VELTAIR-AC with `layers` 1:
        section 5.2 attributes its conflicts to layers that take more cores under interference), else those alone.
        """
        super().__init__(order or ServingOrder())
        self._layers = layers
        self._adapt_versions = adapt_versions
        self._sizes: dict[tuple[ProfileCosts, int, int, int], _BlockSizes] = {}

    def start_block(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        level = state.next_level(now_ns) if self._adapt_versions else SOLO
        costs, start, qos_ns = active.costs, active.next_layer, active.qos_ns
        key = (costs, qos_ns, level, start)
        sizes = self._sizes.get(key)
        if sizes is None:
            sizes = self._sizes[key] = self._size(*key)
        block = LayerBlock(active.query.id, start, sizes.stop, sizes.versions, sizes.cores, sizes.predicted_ns)
        return Start(active, block, level, sizes.capped)

    def _size(self, costs: ProfileCosts, qos_ns: int, level: int, start: int) -> _BlockSizes:
        stop = min(start - start % self._layers + self._layers, costs.layers)
        share_ns = whole_budget(costs, qos_ns).share_ns(start, stop)
        cores, held = costs.cores_for(level, start, stop, share_ns)
        time_ns = costs.time_ns(level, cores, start, stop)
        return _BlockSizes(stop, cores, costs.versions(level, cores, start, stop), time_ns, not held)


class _BlockSizes(NamedTuple):
    """A block without its query."""

    stop: int
    cores: int
    versions: tuple[int, ...]
    predicted_ns: int
    capped: bool
