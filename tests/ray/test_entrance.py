"""Queries at the entrance before several groups, without a cluster."""

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from ray.exceptions import ActorDiedError
from starlette.requests import Request
from starlette.responses import Response
from tritonclient.grpc import service_pb2 as pb

from veltair.ray.entrance import STREAM_DEPTH, Entrance
from veltair.ray.passage import GONE, Metadata


class Group:
    """Answers as a machine does, once all that it waits for have come."""

    def __init__(self, together: int = 1) -> None:
        self._together, self._came = together, asyncio.Event()
        self.asked: list[str] = []

    @property
    def pass_call(self) -> Any:
        return SimpleNamespace(remote=self._answer)

    async def _answer(self, request: bytes, method: str, metadata: Metadata) -> tuple[str, str, bytes]:
        query = pb.ModelInferRequest.FromString(request)
        self.asked.append(query.id)
        if len(self.asked) == self._together:
            self._came.set()
        await self._came.wait()
        if query.model_name == "dead":
            raise ActorDiedError
        if query.model_name != "mlp":
            return "NOT_FOUND", f"unknown model {query.model_name!r}", b""
        return "OK", "", pb.ModelInferResponse(model_name="mlp", id=query.id).SerializeToString()


async def stream(entrance: Entrance, queries: list[pb.ModelInferRequest]) -> list[pb.ModelStreamInferResponse]:
    async def requests() -> AsyncIterator[bytes]:
        for query in queries:
            yield query.SerializeToString()

    context: Any = SimpleNamespace(invocation_metadata=tuple)
    answers = entrance.ModelStreamInfer(requests(), context)
    return [pb.ModelStreamInferResponse.FromString(each.SerializeToString()) async for each in answers]


def test_an_error_has_the_names_of_its_query_and_costs_no_other() -> None:
    async def run() -> list[pb.ModelStreamInferResponse]:
        groups: Any = {"rows": Group(), "turns": Group()}
        entrance = Entrance(groups, {"mlp": "rows", "dead": "turns"})
        names = [("mlp", "a"), ("nobody", "b"), ("dead", "c"), ("mlp", "d")]
        return await stream(entrance, [pb.ModelInferRequest(model_name=name, id=query) for name, query in names])

    good, unknown, dead, last = asyncio.run(run())
    assert (good.error_message, good.infer_response.id) == ("", "a")
    assert (unknown.error_message, unknown.infer_response.id) == ("unknown model 'nobody'", "b")
    assert (dead.error_message, dead.infer_response.id, dead.infer_response.model_name) == (GONE, "c", "dead")
    assert (last.error_message, last.infer_response.id) == ("", "d")


def test_a_machine_that_dies_is_unavailable_over_http_too() -> None:
    async def run() -> Response:
        async def die(*_: Any) -> None:
            raise ActorDiedError

        group: Any = SimpleNamespace(pass_request=SimpleNamespace(remote=die))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request"}

        scope = {"type": "http", "method": "POST", "path": "/v2/models/mlp/infer", "headers": []}
        return await Entrance({"rows": group}, {"mlp": "rows"})(Request(scope, receive))

    answer = asyncio.run(run())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert json.loads(answer.body) == {"error": GONE}


def test_queries_of_a_stream_run_side_by_side_and_are_answered_in_order() -> None:
    async def run() -> list[str]:
        group: Any = Group(together=STREAM_DEPTH)  # answers none before
        queries = [pb.ModelInferRequest(model_name="mlp", id=str(number)) for number in range(STREAM_DEPTH)]
        return [each.infer_response.id for each in await stream(Entrance({"rows": group}, {"mlp": "rows"}), queries)]

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [str(number) for number in range(STREAM_DEPTH)]
