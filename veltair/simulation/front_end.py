"""The way of queries through client and front end, whose work takes core time from the running blocks.

The front end of a machine model serves one query after another. Before its first block a query is sent and decoded;
after its last block its answer is encoded and received.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from veltair.scheduler.events import Decision, FinishQuery, QueryArrived
from veltair.simulation.machine_model.machine_model import MachineModel
from veltair.simulation.machine_model.roofline import ModelWork
from veltair.simulation.virtual_machine import VirtualMachine
from veltair.types import Query, Tenant


@dataclass(frozen=True, slots=True)
class FrontEndCost:
    """Core time in ns that a query takes outside of its blocks.

    >>> FrontEndCost(before_ns=700.0, after_ns=530.0).after_ns
    530.0
    """

    before_ns: float
    after_ns: float


def front_end_cost(model: MachineModel, work: ModelWork) -> FrontEndCost:
    """Returns the cost of a query by the bytes of its input and output; half of the fixed cost comes before it."""
    half_ns = model.front_ns / 2
    return FrontEndCost(half_ns + model.front_in_ns * work.in_bytes, half_ns + model.front_out_ns * work.out_bytes)


class FrontEnd:
    """Sends queries to a virtual machine and records when the client has their answers.

    ::

        front_end = FrontEnd(virtual, {"resnet50": FrontEndCost(700.0, 530.0)})
        front_end.send(0, tenant, time_ns=0)
        for event, decisions in virtual.run():
            front_end.answer(decisions)
        front_end.ended_ns[0]
    """

    def __init__(self, virtual: VirtualMachine, costs: Mapping[str, FrontEndCost]) -> None:
        """`costs`: by tenant's name."""
        self._virtual, self._costs = virtual, costs
        self._sent: dict[int, str] = {}  # tenant by query
        self.ended_ns: dict[int, int] = {}  # by query: when the client has its answer

    def send(self, id: int, tenant: Tenant, time_ns: int) -> None:
        """Plans a query, while the machine does not run."""
        before_ns = self._costs[tenant.name].before_ns
        self._sent[id] = tenant.name

        def arrived(now_ns: int) -> QueryArrived:
            return QueryArrived(now_ns, Query(id, tenant.name, now_ns))

        if before_ns:
            self._virtual.call_at(time_ns, lambda _: self._virtual.add_front_end_work(before_ns, arrived))
        else:
            self._virtual.add_event(arrived(time_ns))

    def answer(self, decisions: Iterable[Decision]) -> None:
        """Takes the answers of finished queries to the client; gets all decisions of the scheduler."""
        for decision in decisions:
            if isinstance(decision, FinishQuery):
                after_ns = self._costs[self._sent[decision.query]].after_ns
                if after_ns:
                    self._virtual.add_front_end_work(after_ns, partial(self._ended, decision.query))
                else:
                    self._ended(decision.query, self._virtual.now_ns)

    def _ended(self, query: int, now_ns: int) -> None:
        self.ended_ns[query] = now_ns
