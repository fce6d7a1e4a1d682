"""What a policy is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.running_block import RunningBlock
from veltair.scheduler.state import SchedulerState
from veltair.scheduler.steps import Step


class Policy(ABC):
    """Decides who gets cores next, and for which layers.

    After every event the scheduler asks for steps and carries each out, until there is none. All the rest, from
    core sets to cancelled queries, is the scheduler's. A question changes nothing in the scheduler's state: what a
    step changes stands in the step. A policy may keep notes of its own, reads neither clock nor chance, starts and
    grows nothing where no core is free, and leaves a query waiting only while some block runs, since nothing else is
    sure to bring another event.

    ::

        class Greedy(Policy):
            def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
                head = state.head()
                if head is None or not state.free:
                    return None
                return Start(head, head.next_block(SOLO, head.costs.layers, state.free), SOLO)
    """

    # Whether queries that meet no other may start without a question (`QueryRuns`), as others like them did, and those
    # that are shorter than a decision one after the other: not where it counts arrivals, or keeps something of every
    # query from its arrival on.
    starts_unasked: ClassVar[bool] = False

    # Whether a query that cannot be in time any more may be refused in its place.
    refuses: ClassVar[bool] = False

    @abstractmethod
    def next_step(self, state: SchedulerState, now_ns: int) -> Step | None:
        """None: nothing more to do until the next event."""

    # What happens between two questions, for the policies that want to know. The default ignores it (so no B027).

    def query_arrived(self, active: ActiveQuery, now_ns: int) -> None:  # noqa: B027
        """An admitted query waits from now on."""

    def block_ended(self, active: ActiveQuery, run: RunningBlock, stop: int, elapsed_ns: int) -> None:  # noqa: B027
        """A block ran up to layer `stop`, in `elapsed_ns` of execution alone."""

    def query_ended(self, active: ActiveQuery, now_ns: int) -> None:  # noqa: B027
        """A query ended in any way: finished if `next_layer` is the number of layers and it was not cancelled.

        A query that is cancelled while its batch goes on for others is not reported.
        """

    def edge_timed(self, spent_ns: Mapping[str, int], unasked: int) -> None:  # noqa: B027
        """So much CPU time went to queries outside of blocks, by `Tenant.owner`; so many ran without a decision, each
        as if alone (`EdgeTimed`)."""

    def tenant_removed(self, tenant: str) -> None:  # noqa: B027
        """The tenant is gone, and all its queries have ended. One that is added later may have its name."""
