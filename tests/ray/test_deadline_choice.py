"""The choice of a replica without a cluster: against Ray's power of two choices, with machines of unequal sizes."""

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from veltair.ray.deadline_choice import DeadlineChoice
from veltair.ray.in_flight import InFlight, TenantNeeds

MS = 1_000_000
CORES = {"large": 12, "small": 2}
TARGET_NS, CORE_NS = 40 * MS, 10.0 * MS  # of every query, which takes one core
NEEDS = {"mlp": TenantNeeds("mlp-model", TARGET_NS, CORE_NS, 0.95)}
PERIOD_NS = 200 * MS


def stats(cores: int, held: int = 0, debt: float = 0.0, time_ns: int = 0, **more: Any) -> dict[str, Any]:
    tenant = {"model": "mlp-model", "target_ns": TARGET_NS, "core_ns": CORE_NS, "held": held, "debt": debt}
    return {"time_ns": time_ns, "cores": cores, "tenants": {"mlp": tenant}, **more}


def first(choice: DeadlineChoice, tenant: str | None = "mlp", now_ns: int = 0) -> str:
    return choice.rank(tenant, now_ns)[0]


def test_a_query_goes_where_more_cores_are_left() -> None:
    choice = DeadlineChoice(Random(1))
    assert choice.update({"large": stats(12, held=20), "small": stats(2, held=1)}) == []
    assert first(choice) == "small"  # 20 queries need 5 of 12 cores, 1 needs a quarter of 2
    for _ in range(3):
        choice.send("small", "mlp", 0)
    assert first(choice) == "large"
    choice.update({"large": stats(12, held=20, time_ns=1), "small": stats(2, held=1, time_ns=1)})
    assert first(choice, now_ns=1) == "small"  # its report is newer than what was sent


def test_debt_and_residence_count() -> None:
    choice = DeadlineChoice(Random(1))
    choice.update({"a": stats(4, debt=0.3), "b": stats(4, held=1)})
    assert first(choice) == "b"
    choice.update({"a": stats(4, debt=0.3, resident=["mlp"]), "b": stats(4, held=1, resident=[])})
    assert choice.rank("mlp", 0) == ["a", "b"]


def test_replicas_come_and_go() -> None:
    choice = DeadlineChoice(Random(1))
    assert choice.rank("mlp", 0) == []
    choice.update({"a": stats(4)})
    assert choice.rank("mlp", 0) == ["a"]
    choice.update({"a": stats(4, held=8), "b": stats(4)})
    assert choice.rank("mlp", 0) == ["b", "a"]
    choice.update({"b": stats(4)})
    assert choice.rank("mlp", 0) == ["b"]
    choice.send("a", "mlp", 0)  # one that is gone


@pytest.mark.parametrize("wrong", [{}, {"cores": "many"}, {"time_ns": 1, "cores": 2, "tenants": {"mlp": 3}}])
def test_a_replica_that_reports_nothing_of_use_is_named(wrong: dict[str, Any]) -> None:
    choice = DeadlineChoice(Random(1))
    assert choice.update({"a": wrong, "b": stats(2)}) == ["a"]
    assert choice.rank("mlp", 0) == ["b"]


def test_what_is_no_query_of_a_known_tenant_goes_anywhere() -> None:
    choice = DeadlineChoice(Random(1))
    choice.update({"a": stats(2, held=9), "b": stats(2)})
    assert {first(choice, tenant) for tenant in (None, "nobody") for _ in range(20)} == {"a", "b"}


def test_the_tenant_is_found_in_the_bytes_of_a_request() -> None:
    choice = DeadlineChoice(Random(1))
    assert choice.tenant_in(b"/v2/models/mlp/infer") is None
    choice.update({"a": stats(2)})
    message = service_pb2.ModelInferRequest(model_name="mlp", id="9").SerializeToString()
    assert choice.tenant_in(b"as Ray has it " + message) == "mlp"
    assert choice.tenant_in(service_pb2.ModelInferRequest(model_name="mlp-model").SerializeToString()) == "mlp"
    assert choice.tenant_in(b"path /v2/models/mlp/versions/1/infer") == "mlp"
    assert choice.tenant_in(b"/v2/models/nobody/infer") is None
    assert choice.tenant_in(b"/v2/health/ready") is None


def test_reports_of_an_idle_machine_stay_the_same() -> None:
    counts = InFlight(2, NEEDS)
    assert counts.report(1) is counts.report(2)
    counts.begin("mlp")
    busy = counts.report(3)
    assert busy["time_ns"] == 3 and counts.report(4)["time_ns"] == 4
    counts.end("mlp", took_ns=TARGET_NS + 1, served=True)
    debts = [counts.report(5 + at)["tenants"]["mlp"]["debt"] for at in range(20)]
    assert debts[0] > 0 and debts[-1] == 0 and debts == sorted(debts, reverse=True)
    assert counts.tenant_of("mlp-model") == "mlp" and counts.tenant_of("nobody") is None


class FifoMachines:
    """Machines on which each query takes one core for CORE_NS, in the order in which they come."""

    def __init__(self) -> None:
        self.free_ns = {name: [0] * cores for name, cores in CORES.items()}  # heaps: when each core is free
        self.counts = {name: InFlight(cores, NEEDS) for name, cores in CORES.items()}
        self.ends: list[tuple[int, int, str]] = []  # a heap: when, arrival, machine

    def advance(self, now_ns: int) -> None:
        while self.ends and self.ends[0][0] <= now_ns:
            end_ns, arrival_ns, name = heappop(self.ends)
            self.counts[name].end("mlp", end_ns - arrival_ns, served=True)

    def send(self, name: str, now_ns: int) -> bool:
        """Returns whether it will be in time."""
        end_ns = max(now_ns, heappop(self.free_ns[name])) + round(CORE_NS)
        heappush(self.free_ns[name], end_ns)
        heappush(self.ends, (end_ns, now_ns, name))
        self.counts[name].begin("mlp")
        return end_ns - now_ns <= TARGET_NS

    def held(self, name: str) -> int:
        return sum(1 for _, _, each in self.ends if each == name)


def share_in_time(choose: Callable[[FifoMachines, int], str], seed: int) -> float:
    """Of queries that come at random, as many as nine tenths of all cores can compute."""
    rng, machines, now, met = Random(seed), FifoMachines(), 0.0, 0
    rate = 0.9 * sum(CORES.values()) / CORE_NS
    for _ in range(20_000):
        now += rng.expovariate(rate)
        machines.advance(round(now))
        met += machines.send(choose(machines, round(now)), round(now))
    return met / 20_000


class ByDeadlines:
    """As Ray's router: reports come once in a period."""

    def __init__(self, seed: int) -> None:
        self.choice, self.reported_ns = DeadlineChoice(Random(seed)), -PERIOD_NS

    def __call__(self, machines: FifoMachines, now_ns: int) -> str:
        if now_ns - self.reported_ns >= PERIOD_NS:
            self.reported_ns = now_ns
            self.choice.update({name: counts.report(now_ns) for name, counts in machines.counts.items()})
        name = first(self.choice, now_ns=now_ns)
        self.choice.send(name, "mlp", now_ns)
        return name


def by_two_choices(machines: FifoMachines, now_ns: int) -> str:
    """Ray's rule: of two replicas the one that holds fewer queries, here with lengths that are never out of date."""
    return min(CORES, key=machines.held)


@pytest.mark.parametrize("seed", range(3))
def test_more_queries_are_in_time_than_with_two_choices_where_machines_are_unequal(seed: int) -> None:
    deadlines, two_choices = share_in_time(ByDeadlines(seed), seed), share_in_time(by_two_choices, seed)
    assert deadlines > two_choices, (deadlines, two_choices)
