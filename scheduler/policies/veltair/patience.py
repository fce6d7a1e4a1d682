"""`Patience`: cores that the default policy keeps from layers which others could not wait for."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from veltair.scheduler.active_query import ActiveQuery
from veltair.scheduler.costs.level_grid import SOLO
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.policies.veltair.correction import Corrections
from veltair.scheduler.state import SchedulerState

FRESH_NS = 10_000_000_000  # a tenant that has sent nothing for so long is not kept anything
LONG = 0.75  # of what a tenant can wait: a layer that takes more is long for it, for its own arrival is late, too


class _Waiting(NamedTuple):
    """What the last query of a tenant could have waited for."""

    seen_ns: int
    wait_ns: float
    cores: int  # that it needs to be in time


class Patience:
    """A block ends between two layers. While one layer has all cores, such as a look-up in a table of gigabytes, who
    comes meanwhile waits for its end, and a tenant with a short target is late for work of a millisecond. So a block
    with a layer that is long for others leaves them the cores that they need, as long as it is in time without.

    ::

        patience = Patience(corrections)
        patience.arrived(active, now_ns)
        patience.kept(state, active, costs, start, cores, now_ns)  # cores to leave free, mostly none
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._tenants: dict[str, _Waiting] = {}
        self._least_ns: float = inf  # that any of them can wait, at most

    def arrived(self, active: ActiveQuery, now_ns: int) -> None:
        """A query has come."""
        name, costs, correction = active.tenant.name, active.costs, self._corrections[active.tenant.name]
        on_one_ns = costs.rest_on_one_ns[SOLO][0] * correction.one_core
        wait_ns = active.qos_ns - correction.least_rest_ns(costs, SOLO, 0)
        cores = 1 if 2 * on_one_ns <= active.qos_ns else costs.cores_for_rest(SOLO, 0, active.qos_ns // 2)
        self._tenants[name] = _Waiting(now_ns, wait_ns, cores)
        self._least_ns = min(self._least_ns, wait_ns)

    def forget(self, tenant: str) -> None:
        """The tenant is gone."""
        self._tenants.pop(tenant, None)

    def kept(
        self, state: SchedulerState, active: ActiveQuery, costs: ProfileCosts, start: int, cores: int, now_ns: int
    ) -> int:
        """How many of the machine's cores to leave to others while layers from `start` on run on `cores`, or none.
        Never all."""
        ratio = self._corrections[active.tenant.name].ratio(cores)
        longest_ns = costs.longest_layer_ns(SOLO, cores, start) * ratio
        if longest_ns <= LONG * self._least_ns:
            return 0
        fresh = {name: one for name, one in self._tenants.items() if now_ns - one.seen_ns <= FRESH_NS}
        self._tenants = fresh
        self._least_ns = min((one.wait_ns for one in fresh.values()), default=inf)
        wanted = [
            one.cores
            for name, one in fresh.items()
            if name != active.tenant.name and 0 < LONG * one.wait_ns < longest_ns
        ]
        return min(max(wanted, default=0), state.cores - 1)
