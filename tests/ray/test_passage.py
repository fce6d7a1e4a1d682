"""Requests to a daemon: what goes along, and what is said where nobody listens."""

import asyncio
import json

import grpc
from free_ports import free_ports

from veltair.ray.passage import GONE, GrpcAnswer, GrpcPassage, HttpPassage, client_metadata


class Context:
    def __init__(self, *metadata: tuple[str, str]) -> None:
        self.metadata, self.code, self.details = metadata, None, ""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return self.metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details


def test_metadata_of_the_client_goes_along_and_that_of_the_connection_does_not() -> None:
    own = [("authorization", "Bearer t"), ("veltair-tenant", "a"), ("traceparent", "00-1")]
    context = Context(*own, ("user-agent", "grpc"), ("grpc-accept-encoding", "gzip"), ("application", "veltair"))
    assert client_metadata(context) == own


def test_a_daemon_that_is_gone_is_unavailable_over_both_protocols() -> None:
    async def ask() -> None:
        [port] = free_ports(1)
        calls, requests = GrpcPassage(f"127.0.0.1:{port}"), HttpPassage(f"127.0.0.1:{port}")
        try:
            answer = await calls.call("ServerLive", b"", [])
            assert answer == GrpcAnswer("UNAVAILABLE", GONE, b"")
            context = Context()
            assert answer.tell(context).SerializeToString() == b""
            assert (context.code, context.details) == (grpc.StatusCode.UNAVAILABLE, GONE)
            answered = await requests.ask("POST", b"/v2/models/m/infer", [], b"{}")
            response = await requests.forward("GET", b"/v2", [], b"")
            assert answered.status == response.status_code == 503
            assert json.loads(answered.body) == {"error": GONE}
            assert response.headers["retry-after"] == "1"
        finally:
            await calls.close()
            await requests.close()

    asyncio.run(ask())
