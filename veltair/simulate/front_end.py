"""The way of queries through the client and the front end, which take cores from the blocks that run.

What a machine model gives it is served one query after another; before a query's first block it is sent and decoded,
after its last one its answer is encoded and received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from veltair.scheduler.events import Decision, FinishQuery, QueryArrived
from veltair.simulate.machine_model.machines import MachineModel
from veltair.simulate.machine_model.roofline import ModelWork
from veltair.simulate.virtual_machine import VirtualMachine
from veltair.types import Query, Tenant


@dataclass(frozen=True, slots=True)
class FrontCost:
    """ns of a core that a query takes outside of its blocks."""

    before_ns: float
    after_ns: float


def front_cost(model: MachineModel, work: ModelWork) -> FrontCost:
    half_ns = model.front_ns / 2
    return FrontCost(half_ns + model.front_in_ns * work.in_bytes, half_ns + model.front_out_ns * work.out_bytes)


class Front:
    """Sends queries to a virtual machine, and knows when their answers are back."""

    def __init__(self, virtual: VirtualMachine, costs: Mapping[str, FrontCost]) -> None:
        """`costs`: by tenant's name."""
        self._virtual, self._costs = virtual, costs
        self._sent: dict[int, str] = {}  # tenant by query
        self.ended_ns: dict[int, int] = {}  # by query: when the client has its answer

    def send(self, id: int, tenant: Tenant, time_ns: int) -> None:
        """To be called before the machine runs."""
        before_ns = self._costs[tenant.name].before_ns
        self._sent[id] = tenant.name

        def arrived(now_ns: int) -> QueryArrived:
            return QueryArrived(now_ns, Query(id, tenant.name, now_ns))

        if before_ns:
            self._virtual.when(time_ns, lambda _: self._virtual.errand(before_ns, arrived))
        else:
            self._virtual.at(arrived(time_ns))

    def answer(self, decisions: Iterable[Decision]) -> None:
        """To be told what the scheduler decided, each time."""
        for decision in decisions:
            if isinstance(decision, FinishQuery):
                after_ns = self._costs[self._sent[decision.query]].after_ns
                if after_ns:
                    self._virtual.errand(after_ns, partial(self._ended, decision.query))
                else:
                    self._ended(decision.query, self._virtual.now_ns)

    def _ended(self, query: int, now_ns: int) -> None:
        self.ended_ns[query] = now_ns
