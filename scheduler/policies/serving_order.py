"""Who gets cores next under the paper's block-wise policies: one order for all of them (VELTAIR sections 3.2 and 4.3).

What a policy does with a query that has its turn, which layers and how many cores, is the policy's own. So VELTAIR-FULL
against VELTAIR-AC or fixed blocks compares compilation and granularity, and not the order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from operator import attrgetter
from typing import Literal

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.policies.policy import Policy
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Grow, Start, Step
from veltair.types import Record

_asked_ns = attrgetter("ready_ns")


class ServingOrder(Record, frozen=True):
    """How the sentences of the paper about the dispatcher and its workers are read. The defaults follow the text.

    >>> ServingOrder().dispatch
    'first-block'
    """

    # Among the queries in flight that want cores: who has asked for the longest time, or who started first.
    workers: Literal["asked", "oldest"] = "asked"
    # When a query starts that waits. "first-block": in order of arrival, once nobody in flight wants cores and the need
    # of its first block is idle ("if there are enough idle cores", 4.3). "passing": the same, but it holds up no other
    # tenant's query that needs fewer cores. "any-core": its first block is a block like any other, and starts with what
    # is free.
    dispatch: Literal["first-block", "passing", "any-core"] = "first-block"
    # A query that cannot be in time any more gets cores only where no other wants them, as in Planaria (MICRO'20).
    yields_late: bool = False


class BlockPolicy(Policy):
    """Blocks that start with what is free and grow (section 3.2), for queries that a dispatcher starts (section 4.3).

    ::

        class OneLayer(BlockPolicy):
            def start_block(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
                return Start(active, active.next_block(SOLO, active.next_layer + 1, cores=1), SOLO)
    """

    starts_unasked = True

    def __init__(self, order: ServingOrder) -> None:
        self._order = order

    @abstractmethod
    def start_block(self, state: SchedulerState, active: ActiveQuery, now_ns: int) -> Start:
        """The next block of a query, on the cores that it needs, be they free or not."""

    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        if not state.pool.free or not (state.wants_cores or state.waiting):
            return None
        first = next((active for active in self._line(state, now_ns) if _wants(active, now_ns)), None)
        if self._order.dispatch == "any-core":
            head = state.head()
            in_line = self._order.workers == "asked"
            if first is None or (in_line and head is not None and head.ready_ns < first.ready_ns):
                first = head
        elif first is None:
            return self._dispatch(state, now_ns)
        if first is None:
            return None
        if first.run is not None:
            return Grow(first, min(first.missing_cores(now_ns), state.free))
        return self.start_block(state, first, now_ns)

    def _line(self, state: SchedulerState, now_ns: int) -> Iterable[ActiveQuery]:
        """The queries in flight that may want cores, the next to be served first."""
        line: Collection[ActiveQuery] = state.wanting_cores()
        if len(line) > 1 and self._order.workers == "asked":
            line = sorted(line, key=_asked_ns)
        return self._late_last(line, now_ns)

    def _dispatch(self, state: SchedulerState, now_ns: int) -> Start | None:
        if len(state.in_flight) >= state.workers:
            return None
        for waiting in self._candidates(state, now_ns):
            start = self.start_block(state, waiting, now_ns)
            if start.block.cores <= state.free:
                return start
            if self._order.dispatch == "first-block":
                return None
        return None

    def _candidates(self, state: SchedulerState, now_ns: int) -> Iterator[ActiveQuery]:
        """The first query of each tenant that waits, in order; for those behind it the cores do not suffice either."""
        seen: set[str] = set()
        for waiting in self._late_last(state.waiting.values(), now_ns):
            if waiting.tenant.name not in seen:
                yield waiting
                seen.add(waiting.tenant.name)
                if len(seen) == len(state.tenants):
                    return

    def _late_last(self, queries: Collection[ActiveQuery], now_ns: int) -> Collection[ActiveQuery]:
        if not self._order.yields_late or len(queries) < 2:
            return queries
        return sorted(queries, key=lambda active: _is_late(active, now_ns))


def _wants(active: ActiveQuery, now_ns: int) -> bool:
    return active.run is None or active.missing_cores(now_ns) > 0


def _is_late(active: ActiveQuery, now_ns: int) -> bool:
    """Whether it cannot be in time on any number of cores. A block that runs ends as predicted."""
    from_ns = now_ns if active.run is None else max(now_ns, active.run.ends_ns)
    return from_ns + active.costs.least_rest_ns[SOLO][active.next_layer] > active.due_ns
