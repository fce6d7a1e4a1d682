"""What a replica has passed on and not answered, and how often its answers were late: its report to Ray's routers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORGETS = 0.5  # of what it remembers of late queries, at each report
NO_DEBT = 1e-3  # below it a debt is none, so that the reports of an idle machine become the same


@dataclass(frozen=True, slots=True)
class TenantNeeds:
    """What a tenant asks of a machine.

    >>> TenantNeeds("resnet50", target_ns=50_000_000, core_ns=3e7, percentile=0.95).model
    'resnet50'
    """

    model: str  # clients may name it instead of the tenant
    target_ns: int
    core_ns: float  # core time of a query on the fewest cores that are in time
    percentile: float


class InFlight:
    """Counts of one machine by tenant.

    >>> counts = InFlight(4, {"dlrm": TenantNeeds("dlrm", 10_000_000, 2e6, 0.95)})
    >>> counts.begin("dlrm")
    >>> counts.report(now_ns=5)["tenants"]["dlrm"]["held"]
    1
    >>> counts.end("dlrm", took_ns=20_000_000, served=True)
    >>> round(counts.report(now_ns=7)["tenants"]["dlrm"]["debt"], 2)
    0.45
    """

    def __init__(self, cores: int, needs: Mapping[str, TenantNeeds]) -> None:
        self._cores, self._needs = cores, needs
        self._by_model: dict[str, str] = {}
        for name, each in needs.items():
            self._by_model.setdefault(each.model, name)
        self._held = dict.fromkeys(needs, 0)
        self._late, self._ended = dict.fromkeys(needs, 0.0), dict.fromkeys(needs, 0.0)
        self._reported: dict[str, Any] | None = None

    def tenant_of(self, name: str) -> str | None:
        """The tenant that a client means; None for one that is not served here."""
        return name if name in self._needs else self._by_model.get(name)

    def begin(self, tenant: str) -> None:
        self._held[tenant] += 1

    def end(self, tenant: str, took_ns: int, *, served: bool) -> None:
        """A refused or failed query is as late as one that took too long."""
        self._held[tenant] -= 1
        self._ended[tenant] += 1
        self._late[tenant] += not served or took_ns > self._needs[tenant].target_ns

    def report(self, now_ns: int) -> dict[str, Any]:
        """The report that `DeadlineChoice` reads. While nothing is in flight or owed it stays the same, with its time:
        Ray sends what has changed to every router. `now_ns`: since the epoch, for routers on other machines.
        """
        tenants = {}
        for name, each in self._needs.items():
            debt = max(self._late[name] / (self._ended[name] + 1) - (1 - each.percentile), 0.0)
            tenants[name] = {
                "model": each.model,
                "target_ns": each.target_ns,
                "core_ns": each.core_ns,
                "held": self._held[name],
                "debt": debt if debt >= NO_DEBT else 0.0,
            }
            self._late[name] *= FORGETS
            self._ended[name] *= FORGETS
        idle = not any(self._held.values())
        if not idle or self._reported is None or self._reported["tenants"] != tenants:
            self._reported = {"time_ns": now_ns, "cores": self._cores, "tenants": tenants}
        return self._reported
