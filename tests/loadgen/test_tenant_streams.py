from __future__ import annotations

import asyncio

import pytest

from veltair.errors import ConfigError
from veltair.loadgen import tenant_streams
from veltair.loadgen.client import ModelMetadata, Outcome, Response, TensorMetadata
from veltair.loadgen.scenario import TenantLoad
from veltair.loadgen.tenant_streams import TenantStream, measure_solo_ns, prepare_streams, wait_until_idle

MS = 1_000_000


class Fake:
    """A server in the same process whose answers come from a list, then are good."""

    def __init__(self, *answers: Response) -> None:
        self.answers, self.sent = list(answers), []

    async def describe(self, model: str) -> ModelMetadata:
        return ModelMetadata(model, (TensorMetadata("x", "FP32", (-1, 3)),))

    def encode(self, meta, tensors) -> bytes:
        return meta.name.encode() + tensors["x"].tobytes()

    async def send(self, request: bytes, tenant: int = 0) -> Response:
        self.sent.append(request)
        return self.answers.pop(0) if self.answers else Response(Outcome.OK)


def prepared(client, seed: int = 1) -> list[TenantStream]:
    tenants = [TenantLoad("a", 5.0, 12.5, 0.9), TenantLoad("b", 7.0, 30.0, batch=(1, 4))]
    return asyncio.run(prepare_streams(client, tenants, seed))


def test_streams_carry_the_scenario_and_seeded_requests():
    first, again, other = prepared(Fake()), prepared(Fake()), prepared(Fake(), seed=2)
    assert first == again != other
    a, b = first
    assert (a.name, a.qps, a.target_ns, a.percentile) == ("a", 5.0, 12_500_000, 0.9)
    assert {len(request) for request in a.requests} == {1 + 12}
    assert {len(request) for request in b.requests} == {1 + 12 * n for n in (1, 2, 3, 4)}


def test_each_model_is_asked_once_and_must_answer():
    client = Fake(Response(Outcome.OK), Response(Outcome.REFUSED, "503 queue full"))
    with pytest.raises(ConfigError, match="model `b`: a first query failed: 503 queue full"):
        prepared(client)
    assert [request[:1] for request in client.sent] == [b"a", b"b"]


def test_settled_only_when_every_model_answers_a_lone_query(monkeypatch):
    monkeypatch.setattr(tenant_streams, "POLL_S", 0.0)
    a, b = prepared(Fake())
    full = Response(Outcome.REFUSED, "full")
    client = Fake(full, full, Response(Outcome.OK), full)
    asyncio.run(wait_until_idle(client, [a, b], [10**12, 10**12]))
    assert [request[:1] for request in client.sent] == [b"a", b"a", b"a", b"b", b"b"]


@pytest.mark.parametrize(
    ("answers", "alone_ns", "why"),
    [([Response(Outcome.REFUSED, "503 full")] * 9, 10**12, "503 full"), ([], -(10**12), "a lone query took")],
)
def test_a_daemon_that_does_not_settle(monkeypatch, answers, alone_ns, why):
    monkeypatch.setattr(tenant_streams, "SETTLE_S", 0.0)
    with pytest.raises(ConfigError, match=f"model `a`: still not idle .*{why}"):
        asyncio.run(wait_until_idle(Fake(*answers), prepared(Fake()), [alone_ns] * 2))


def test_solo_times_are_of_every_stream():
    client = Fake()
    both = prepared(Fake())
    slowest = asyncio.run(measure_solo_ns(client, both, rounds=2))
    assert len(slowest) == 2 and min(slowest) > 0
    assert client.sent == [both[0].requests[0], both[1].requests[0], both[0].requests[1], both[1].requests[1]]
