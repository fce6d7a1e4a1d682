"""An admitted, unfinished query, and the batch that runs in its name."""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.running_block import RunningBlock
from veltair.types import LayerBlock, Query, State, Tenant


class ActiveQuery(State):
    """An admitted, unfinished query, or the batch that runs in its name."""

    query: Query
    tenant: Tenant
    costs: ProfileCosts  # of the profile with the smallest batch that holds the query, and the members
    qos_ns: int  # that is planned for
    due_ns: int  # the end that is planned for: by QoS or the query's own deadline, whichever comes first
    avg_cores: int  # Avg_C: of the whole model against the QoS at first; a policy may renew it
    next_layer: int = 0  # the first layer that has not run, nor runs now
    run: RunningBlock | None = None
    cancelled: bool = False
    ready_ns: int = 0  # since when it waits for cores, or waited for those of the block that runs
    members: tuple[ActiveQuery, ...] = ()  # run in its name, as one batch with it; none is cancelled
    number: int = 0  # counts through the queries as they start

    @property
    def fully_cancelled(self) -> bool:
        """Nobody waits for it any more."""
        return self.cancelled and not self.members

    def awaited(self) -> Iterator[ActiveQuery]:
        """It and its members, but for the cancelled."""
        if not self.cancelled:
            yield self
        yield from self.members

    def block(self, level: int, stop: int, cores: int) -> LayerBlock:
        """The layers from the next one to `stop`, each in its best version for that level and number of cores."""
        costs, start = self.costs, self.next_layer
        versions = costs.versions(level, cores, start, stop)
        return LayerBlock(self.query.id, start, stop, versions, cores, costs.time_ns(level, cores, start, stop))
