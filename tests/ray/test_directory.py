"""Where the daemons listen, of machines that answer, have ended, or are cut off."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve.exceptions import RayServeException

from veltair.ray import directory
from veltair.ray.directory import Directory

TENANTS = {"a": ["x", "y"], "b": ["z"]}


class Machine:
    """`state`: "there", "ended" or "cut off". `node`: "n1#2" is the second one at the address n1."""

    def __init__(self, node: str, group: str, state: str = "there") -> None:
        self.node, self.group, self.state, self.asked = node, group, state, 0

    async def get_async(self) -> dict[str, Any]:
        self.asked += 1
        if self.state == "ended":
            raise RuntimeError("the actor died")
        if self.state == "cut off":
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        host = self.node.partition("#")[0]
        return {"node": host, "grpc": f"{self.node}:8001", "tenants": TENANTS[self.group]}


class Handle:
    """Of a deployment whose replicas are these machines."""

    def __init__(self, *machines: Machine) -> None:
        self.machines = list(machines)

    def broadcast(self, method: str) -> Any:
        assert method == "where"
        return SimpleNamespace(_fetch_replica_results_async=self._replicas)

    async def _replicas(self) -> list[Machine]:
        if not self.machines:
            raise RayServeException("no replica")
        return self.machines


async def ask(asked: Directory, tenant: str | None = None) -> tuple[int, Any]:
    request: Any = SimpleNamespace(query_params={} if tenant is None else {"tenant": tenant})
    response = await asked(request)
    return response.status_code, json.loads(bytes(response.body))


async def nodes(asked: Directory, tenant: str | None = None) -> list[str]:
    status, content = await ask(asked, tenant)
    assert status == 200
    return sorted(machine["grpc"].partition(":")[0] for machine in content["machines"])


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "ANSWER_S", 0.02)
    monkeypatch.setattr(directory, "FIRST_ANSWER_S", 0.02)


def test_machines_are_named_by_tenant() -> None:
    async def story() -> None:
        asked = Directory({"a": Handle(Machine("n1", "a"), Machine("n1#2", "a")), "b": Handle(Machine("n3", "b"))})  # type: ignore[dict-item]
        assert await nodes(asked) == ["n1", "n1#2", "n3"], "two daemons of one address are two machines"
        assert await nodes(asked, "y") == ["n1", "n1#2"]
        assert await ask(asked, "nobody") == (404, {"error": "no machine serves tenant 'nobody'"})

    asyncio.run(story())


def test_a_machine_that_is_cut_off_does_not_hide_the_others(short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        first, second = Machine("n1", "a"), Machine("n2", "a")
        asked = Directory({"a": Handle(first, second)})  # type: ignore[dict-item]
        assert await nodes(asked) == ["n1", "n2"]
        second.state = "cut off"
        assert await nodes(asked) == ["n1", "n2"], "it may be busy"
        monkeypatch.setattr(directory, "KNOWN_S", 0.0)
        assert await nodes(asked) == ["n1"]
        second.state = "there"
        assert await nodes(asked) == ["n1", "n2"]

    asyncio.run(story())


def test_a_machine_that_has_ended_is_named_no_more(short: None) -> None:
    async def story() -> None:
        first, second = Machine("n1", "a"), Machine("n2", "a")
        group = Handle(first, second)
        asked = Directory({"a": group})  # type: ignore[dict-item]
        assert await nodes(asked) == ["n1", "n2"]
        second.state = "ended"
        assert await nodes(asked) == ["n1"]
        group.machines.clear()
        assert await ask(asked) == (503, {"error": "no machine is there at the moment"})

    asyncio.run(story())


def test_a_directory_that_begins_beside_a_machine_that_is_cut_off(short: None) -> None:
    async def story() -> None:
        asked = Directory({"a": Handle(Machine("n1", "a"), Machine("n2", "a", "cut off"))})  # type: ignore[dict-item]
        assert await nodes(asked) == ["n1"]

    asyncio.run(story())


def test_many_who_ask_at_once_cost_one_question() -> None:
    async def story() -> None:
        machine = Machine("n1", "a")
        asked = Directory({"a": Handle(machine)})  # type: ignore[dict-item]
        assert await asyncio.gather(*(nodes(asked) for _ in range(50))) == [["n1"]] * 50
        assert machine.asked == 1
        leaver = asyncio.create_task(nodes(asked))
        await asyncio.sleep(0)
        leaver.cancel()
        assert await nodes(asked) == ["n1"], "who leaves takes nobody's answer away"

    asyncio.run(story())
