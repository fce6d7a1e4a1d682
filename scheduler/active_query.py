"""An admitted, unfinished query, and the batch that runs in its name."""

from __future__ import annotations

from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.running_block import RunningBlock
from veltair.types import LayerBlock, Query, State, Tenant

_RUNNING = QueryState.RUNNING


class ActiveQuery(State):
    """An admitted, unfinished query. Where it leads a batch, it stands for the whole batch.

    Policies read it; only `SchedulerState` writes it. See `Scheduler` for an example.

    ::

        active = ActiveQuery(query, tenant, costs, qos_ns=15_000_000, due_ns=15_000_000, avg_cores=4)
        active.next_block(SOLO, costs.layers, 4)  # the whole model on 4 cores
    """

    query: Query
    tenant: Tenant
    costs: ProfileCosts  # of the profile with the smallest batch that holds the query and its members
    qos_ns: int  # the target that policies plan with
    due_ns: int  # the end that policies plan with: by the target or the query's own deadline, whichever comes first
    avg_cores: int  # Avg_C: of the whole model against the target at first; a policy's Start may renew it
    state: QueryState = QueryState.NEW
    next_layer: int = 0  # the first layer that has not run and does not run now
    run: RunningBlock | None = None
    cancelled: bool = False  # its own client has left; the batch may go on for its members
    ready_ns: int = 0  # when it began to wait for cores, for the block that runs or for the next one
    members: tuple[ActiveQuery, ...] = ()  # run in one batch with it; none of them is cancelled
    number: int = 0  # counts the queries in the order in which they start

    @property
    def fully_cancelled(self) -> bool:
        """Whether nobody waits for the query or its batch any more."""
        return self.cancelled and not self.members

    @property
    def live_queries(self) -> tuple[ActiveQuery, ...]:
        """The query and its members, without those that are cancelled."""
        return self.members if self.cancelled else (self, *self.members)

    def next_block(self, level: int, stop: int, cores: int, costs: ProfileCosts | None = None) -> LayerBlock:
        """The layers from the next one to `stop`, each in its best version for that level and number of cores.

        `costs`: of the batch that the query is to lead; by default its own.
        """
        costs, start = costs or self.costs, self.next_layer
        versions = costs.versions(level, cores, start, stop)
        return LayerBlock(self.query.id, start, stop, versions, cores, costs.time_ns(level, cores, start, stop))

    def missing_cores(self, now_ns: int) -> int:
        """How many more cores the running block could still use; 0 if none runs, or if it stops or soon finishes."""
        run = self.run
        if run is None or not run.growable or self.state is not _RUNNING or now_ns >= run.soon_ns:
            return 0
        return run.block.cores - len(run.core_set)
