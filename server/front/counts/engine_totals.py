"""`EngineTotals`: what engines have counted, since the front started."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from veltair.server.ipc.messages import EngineStatus
from veltair.server.ipc.status_records import TenantStatus

_COUNTS = ("conflicts", "capped_blocks", "blocks_started", "scheduler_ns", "scheduler_events", "gap_ns", "gaps")
_OF_NOW = ("waiting", "running")  # of a tenant: these are no counts


class EngineTotals:
    """An engine counts from nothing on, and its counts go with it. Here those of the engines before it are added, so
    that no counter goes back. What an engine has counted since it was last asked is lost when it dies.

    >>> from veltair.server.ipc.status_records import Executions
    >>> totals = EngineTotals()
    >>> totals.follow_tenants(0, {"mlp": TenantStatus(done=2, executions={"1": {4: Executions(2, 900)}})})
    >>> totals.follow_tenants(1, {"mlp": TenantStatus(done=1, waiting=3, executions={"1": {1: Executions(1, 100)}})})
    >>> now = totals.tenants["mlp"]
    >>> now.done, now.waiting, now.executions["1"]
    (3, 3, {4: Executions(count=2, execute_ns=900), 1: Executions(count=1, execute_ns=100)})
    """

    def __init__(self) -> None:
        self.tenants: dict[str, TenantStatus] = {}  # by name, those that are gone too
        self.counts = dict.fromkeys((*_COUNTS, "worker_deaths"), 0)
        self._engine = -1
        self._tenants_before: Mapping[str, TenantStatus] = {}  # of the engines before this one
        self._counts_before: Mapping[str, int] = self.counts

    def follow(self, engine: int, status: EngineStatus) -> None:
        """What an engine has counted since it started. `engine`: which one that is."""
        self.follow_tenants(engine, status.tenants)
        self.counts = {name: before + getattr(status, name) for name, before in self._counts_before.items()}

    def follow_tenants(self, engine: int, told: Mapping[str, TenantStatus]) -> None:
        """As `follow`, of the tenants alone."""
        if engine != self._engine:
            self._engine, self._counts_before = engine, self.counts
            zero = dict.fromkeys(_OF_NOW, 0)
            self._tenants_before = {n: msgspec.structs.replace(each, **zero) for n, each in self.tenants.items()}
        self.tenants = _sum(self._tenants_before, told)


def _sum(before: Any, more: Any) -> Any:
    """Of counts, and of what consists of counts."""
    if isinstance(before, Mapping):
        both = {key: _sum(value, more[key]) if key in more else value for key, value in before.items()}
        return both | {key: value for key, value in more.items() if key not in before}
    if isinstance(before, TenantStatus):
        fields = msgspec.structs.asdict(before)
        return TenantStatus(**{name: _sum(value, getattr(more, name)) for name, value in fields.items()})
    return before + more
