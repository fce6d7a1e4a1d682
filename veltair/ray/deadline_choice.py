"""Which replica gets a query, from what the replicas report; without Ray, so that it can be tried without a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, TypeAlias

import msgspec

from veltair.simulation.headroom import Headroom, MachineReport

_PATH = b"/v2/models/"

Stats: TypeAlias = Mapping[str, Any]


class TenantReport(msgspec.Struct, frozen=True):
    """A tenant on one machine.

    >>> TenantReport("mlp", 50_000_000, 3e6, held=2, debt=0.1).held
    2
    """

    model: str
    target_ns: int
    core_ns: float
    held: int
    debt: float


class ReplicaReport(msgspec.Struct, frozen=True):
    """What `record_routing_stats` of a replica gives.

    >>> ReplicaReport(time_ns=0, cores=8, tenants={}).resident is None
    True
    """

    time_ns: int  # since the epoch
    cores: int
    tenants: dict[str, TenantReport]
    resident: tuple[str, ...] | None = None  # tenants whose model is in memory; None: all


class DeadlineChoice:
    """Follows the rule of `Headroom` over replicas that come and go.

    ::

        choice = DeadlineChoice(Random(1))
        silent = choice.update({"a": stats_of_a, "b": stats_of_b})
        order = choice.rank("dlrm", now_ns)      # the replica with the most headroom first
        choice.send(order[0], "dlrm", now_ns)
    """

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._stats: Mapping[str, Stats] = {}
        self._reports: dict[str, ReplicaReport] = {}
        self._places: dict[str, int] = {}  # of a replica in the arrays of `_headroom`
        self._tenants: list[str] = []
        self._headroom: Headroom | None = None

    def update(self, stats: Mapping[str, Stats]) -> list[str]:
        """Take the newest report of each replica that there is. Returns those that report nothing of use."""
        reports, silent = {}, []
        for name, each in stats.items():
            if name in self._reports and self._stats.get(name) is each:
                reports[name] = self._reports[name]
                continue
            try:
                reports[name] = msgspec.convert(each, ReplicaReport)
            except msgspec.ValidationError:
                silent.append(name)
        before, self._reports, self._stats = self._reports, reports, dict(stats)
        if {name: _shape(report) for name, report in before.items()} != {n: _shape(r) for n, r in reports.items()}:
            self._begin_anew()
            before = {}
        for name, report in reports.items():
            if before.get(name) is not report:
                self._take(name, report)
        return silent

    def rank(self, tenant: str | None, now_ns: int) -> list[str]:
        """The replicas that report, the best one first; in a random order for what is no query of a known tenant.

        Where a model is not in memory everywhere, those replicas come first that have it there.
        """
        names = list(self._places)
        self._rng.shuffle(names)  # of replicas with the same headroom any comes first
        if self._headroom is None or tenant not in self._tenants:
            return names
        headroom = self._headroom.of(self._tenants.index(tenant), now_ns)

        def rank(name: str) -> tuple[bool, float]:
            resident = self._reports[name].resident
            return resident is not None and tenant not in resident, -float(headroom[self._places[name]])

        return sorted(names, key=rank)

    def send(self, replica: str, tenant: str | None, now_ns: int) -> None:
        """A query was sent there."""
        if self._headroom is not None and replica in self._places and tenant in self._tenants:
            self._headroom.send(self._places[replica], self._tenants.index(tenant), now_ns)

    def tenant_in(self, head: bytes) -> str | None:
        """The tenant whose query begins so: over HTTP in a path, over gRPC as the first field of a message.

        It is a hint, from bytes that nobody has decoded: a wrong one costs a worse choice of the replica.
        """
        names = self._names()
        if (at := head.find(_PATH)) >= 0:
            named = head[at + len(_PATH) :].split(b"/", 1)[0]
            return names.get(named)
        return next((tenant for name, tenant in names.items() if bytes((0x0A, len(name))) + name in head), None)

    def _names(self) -> dict[bytes, str]:
        report = next(iter(self._reports.values()), None)
        if report is None:
            return {}
        models = {each.model.encode(): name for name, each in report.tenants.items()}
        names = {name.encode(): name for name in report.tenants}
        return {name: tenant for name, tenant in (models | names).items() if len(name) < 128}

    def _begin_anew(self) -> None:
        """Other replicas than before: what was sent since their last reports is forgotten, until the next ones."""
        self._places = {name: at for at, name in enumerate(self._reports)}
        self._tenants = list(dict.fromkeys(name for report in self._reports.values() for name in report.tenants))
        self._headroom = None
        if self._places and self._tenants:
            self._headroom = Headroom(
                [self._of_any(tenant).target_ns for tenant in self._tenants],
                [[self._of(report, tenant).core_ns for tenant in self._tenants] for report in self._reports.values()],
                [report.cores for report in self._reports.values()],
            )

    def _take(self, name: str, report: ReplicaReport) -> None:
        if self._headroom is None:
            return
        tenants = [report.tenants.get(tenant) for tenant in self._tenants]
        held = tuple(0 if each is None else each.held for each in tenants)
        debt = tuple(0.0 if each is None else each.debt for each in tenants)
        self._headroom.report(MachineReport(self._places[name], report.time_ns, held, debt))

    def _of_any(self, tenant: str) -> TenantReport:
        return next(report.tenants[tenant] for report in self._reports.values() if tenant in report.tenants)

    def _of(self, report: ReplicaReport, tenant: str) -> TenantReport:
        return report.tenants.get(tenant) or self._of_any(tenant)


def _shape(report: ReplicaReport) -> tuple[Any, ...]:
    return report.cores, tuple((name, each.target_ns, each.core_ns) for name, each in report.tenants.items())
