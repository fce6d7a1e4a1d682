"""The steps that a policy asks for and the scheduler carries out."""

from __future__ import annotations

from typing import TypeAlias

from veltair.errors import RefusalReason
from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.types import CoreSet, LayerBlock, Record


class Start(Record, frozen=True):
    """Start this block now, on as many of its cores as are free (at least one must be).

    All that the start changes stands here; the policy itself changes nothing.

    ::

        Start(active, active.next_block(SOLO, active.costs.layers, 4), SOLO)  # the rest of the model on 4 cores
    """

    active: ActiveQuery
    block: LayerBlock
    level: int  # grid index: the block's versions are the best at it
    capped: bool = False  # its share of the target cannot be held on the cores that it may use
    avg_cores: int | None = None  # the query's new Avg_C; None: as before
    members: tuple[ActiveQuery, ...] = ()  # waiting queries of the same tenant: they run in one batch with this one
    costs: ProfileCosts | None = None  # of a profile that holds the batch; None: as before
    avoid: CoreSet = ()  # cores that are taken only where others do not do


class Grow(Record, frozen=True):
    """Give a running block this many of the free cores in addition.

    ::

        Grow(active, more=2)
    """

    active: ActiveQuery
    more: int
    avoid: CoreSet = ()  # cores that are taken only where others do not do


class Stop(Record, frozen=True):
    """End a running block at its next layer; the query stays, and goes on from there when it is started again.

    ::

        Stop(active)
    """

    active: ActiveQuery


class Reject(Record, frozen=True):
    """Give up a query, or a batch, that runs no block now.

    ::

        Reject(active, RefusalReason.OVERLOAD, for_ns=2_000_000)
    """

    active: ActiveQuery
    reason: RefusalReason
    for_ns: int = 0  # another query like it would be refused so long


Step: TypeAlias = Start | Grow | Stop | Reject
