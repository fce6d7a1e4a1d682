"""Ray's side of the choice of a replica, with replicas that only report."""

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, ReplicaID, RequestMetadata
from ray.serve.request_router import PendingRequest
from test_deadline_choice import stats
from tritonclient.grpc import service_pb2

from veltair.ray.router import DeadlineRequestRouter

DEPLOYMENT = DeploymentID("machines", "veltair")
MESSAGE = service_pb2.ModelInferRequest(model_name="mlp").SerializeToString()


def now(held: int = 0) -> dict[str, Any]:
    """A report of a machine with two cores, made at this moment."""
    return stats(2, held, time_ns=time.time_ns())


def replica(name: str, **reported: Any) -> Any:
    async def get_queue_len(*, deadline_s: float) -> int:
        return 0

    return SimpleNamespace(
        replica_id=ReplicaID(name, DEPLOYMENT),
        routing_stats=reported,
        max_ongoing_requests=10,
        get_queue_len=get_queue_len,
    )


def request(number: int) -> PendingRequest:
    return PendingRequest(args=[MESSAGE], kwargs={}, metadata=RequestMetadata(str(number), str(number)))


async def order_of(router: DeadlineRequestRouter, replicas: list[Any], number: int = 0) -> list[list[str]]:
    ranks = await router.choose_replicas(replicas, request(number))
    return [[each.replica_id.unique_id for each in rank] for rank in ranks if rank]


def new_router(replicas: list[Any]) -> DeadlineRequestRouter:
    router = DeadlineRequestRouter(DEPLOYMENT, DeploymentHandleSource.REPLICA, use_replica_queue_len_cache=True)
    router.initialize_state()
    router.update_replicas(replicas)
    return router


def test_replicas_are_ranked_by_headroom_and_silent_ones_come_last() -> None:
    async def choose() -> None:
        replicas = [replica("silent"), replica("full", **now(8)), replica("free", **now())]
        assert await order_of(new_router(replicas), replicas) == [["free"], ["full"], ["silent"]]

    asyncio.run(choose())


def test_queries_that_are_chosen_for_at_once_are_spread() -> None:
    async def choose() -> None:
        replicas = [replica(name, **now()) for name in "abcd"]
        router = new_router(replicas)
        orders = [await order_of(router, replicas, number) for number in range(4)]
        assert sorted(order[0][0] for order in orders) == ["a", "b", "c", "d"]

    asyncio.run(choose())


def test_a_query_that_went_elsewhere_counts_there() -> None:
    async def choose() -> None:
        replicas = [replica("a", **now()), replica("b", **now(1))]
        router = new_router(replicas)
        for number in range(4):
            await order_of(router, replicas[:1], number)  # only one is offered
            router.on_request_routed(request(number), replicas[0].replica_id, None)
        assert (await order_of(router, replicas, 9))[0] == ["b"]

    asyncio.run(choose())


def test_without_any_report_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async def choose() -> None:
        replicas = [replica(name) for name in "abc"]
        router = new_router(replicas)
        for number in range(3):
            [rank] = await order_of(router, replicas, number)
            assert len(rank) == 2  # of which Ray takes the one with the shorter queue

    serve_log = logging.getLogger("ray.serve")
    serve_log.addHandler(caplog.handler)
    try:
        asyncio.run(choose())
    finally:
        serve_log.removeHandler(caplog.handler)
    expected = "no replica of machines reports its headroom (a, b, c); queries go by the lengths of queues"
    assert [record.getMessage() for record in caplog.records if "headroom" in record.getMessage()] == [expected]
