"""`Directory`: says where the daemons listen, for clients that go there themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from veltair.errors import quoted

ANSWER_S = 1.0  # for the machines to say where they listen, where one of them does not
FIRST_ANSWER_S = 5.0  # the same while nothing is known
KNOWN_S = 10.0  # that a machine which does not answer is still named: it may be busy


class Directory:
    """Says over HTTP where the daemons of each group listen: `{"machines": [{"node", "http", "grpc", "tenants"}]}`.

    It asks them each time, so that nobody is sent to one that has ended. One that is cut off does not say so: the
    others are named after a second all the same, and it as well for a while. There are several of these, on nodes of
    their own.
    """

    def __init__(self, machines: Mapping[str, DeploymentHandle]) -> None:
        self._machines = machines
        self._known: dict[tuple[str, str], tuple[dict[str, Any], float]] = {}  # by group and address; when it was said
        self._asking: asyncio.Task[list[dict[str, Any]]] | None = None

    async def __call__(self, request: Request) -> Response:
        """GET of any path. `?tenant=NAME`: the machines that serve it alone."""
        tenant = request.query_params.get("tenant")
        if self._asking is None or self._asking.done():  # those who come meanwhile get the same answer
            self._asking = asyncio.create_task(self._ask())
        machines = await asyncio.shield(self._asking)
        shown = [each for each in machines if tenant is None or tenant in each["tenants"]]
        if tenant is not None and machines and not shown:
            return JSONResponse({"error": f"no machine serves tenant {quoted(tenant)}"}, 404)
        if not shown:
            return JSONResponse({"error": "no machine is there at the moment"}, 503, {"Retry-After": "1"})
        return JSONResponse({"machines": shown})

    async def _ask(self) -> list[dict[str, Any]]:
        groups = await asyncio.gather(*(self._ask_group(*each) for each in self._machines.items()))
        return [machine for machines in groups for machine in machines]

    async def _ask_group(self, group: str, handle: DeploymentHandle) -> list[dict[str, Any]]:
        known = {grpc: each for (name, grpc), each in self._known.items() if name == group}
        patience_s = ANSWER_S if known else FIRST_ANSWER_S
        try:
            # Not `results_async`, which has no result at all where one replica does not answer.
            asked = await asyncio.wait_for(handle.broadcast("where")._fetch_replica_results_async(), patience_s)
        except (RayServeException, TimeoutError):
            return []
        tasks = [asyncio.ensure_future(replica.get_async()) for replica in asked]
        done, silent = await asyncio.wait(tasks, timeout=patience_s) if tasks else (set(), set())
        for task in silent:
            task.cancel()
        now_s = time.monotonic()
        said = {each["grpc"]: (each, now_s) for each in _answers(done)}
        if silent:
            said = {grpc: each for grpc, each in known.items() if now_s - each[1] < KNOWN_S} | said
        self._known = {key: each for key, each in self._known.items() if key[0] != group}
        self._known |= {(group, grpc): each for grpc, each in said.items()}
        return [{"group": group, **each} for each, _ in said.values()]


def _answers(tasks: Iterable[asyncio.Future[Any]]) -> list[dict[str, Any]]:
    """The answers of those that did not fail: a machine that has ended is no machine."""
    return [task.result() for task in tasks if not task.cancelled() and task.exception() is None]
