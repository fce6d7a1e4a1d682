"""`QueryResult`: what a query gave; `HeldQuery`: one that waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import NDArray

from veltair.errors import QueryError, RequestError
from veltair.server.ipc.messages import InferQuery, QueryEnded
from veltair.server.ipc.stages import ANSWER, STAGES, EngineStamps
from veltair.server.ipc.status_records import BlockRecord
from veltair.server.protocol.infer_request import Parameter
from veltair.server.repository.engine_models import EngineModels

TRACE_PARAMETER = "veltair_trace"  # true: the response's parameters say how the query was served


@dataclass(frozen=True, slots=True)
class QueryResult:
    """What a query gave, and how it was served.

    >>> QueryResult({}, queue_ns=3_000, execute_ns=2_000, submitted_ns=0, stamps=EngineStamps(1, 2, 3, 4)).queue_ns
    3000
    """

    outputs: Mapping[str, NDArray[Any]]
    queue_ns: int  # arrival to first block
    execute_ns: int  # in blocks
    submitted_ns: int  # when the front handed it to the engine
    stamps: EngineStamps
    blocks: tuple[BlockRecord, ...] = ()  # of a traced query


@dataclass(frozen=True, slots=True)
class HeldQuery:
    """A query that holds a slot; `result` may be set before the slot is free.

    ::

        held = HeldQuery(loop.create_future(), infer_query, submitted_ns=time.monotonic_ns())
        outputs = (await held.result).outputs
    """

    result: asyncio.Future[QueryResult]
    message: InferQuery
    submitted_ns: int

    def answer(self, models: EngineModels, ended: QueryEnded) -> None:
        """Whoever waits for it gets its outputs, or learns that they are larger than the model has room for."""
        query, stamps = self.message, ended.stamps
        try:
            outputs = models.read_outputs(query)
        except RequestError as error:
            self.result.set_exception(error)
            return
        queue_ns = stamps.begin_ns - query.arrival_ns
        result = QueryResult(outputs, queue_ns, ended.execute_ns, self.submitted_ns, stamps, ended.blocks)
        self.result.set_result(result)

    def fail(self, error: QueryError) -> None:
        """Whoever waits for it gets this error, unless it has ended before."""
        if not self.result.done():
            error.query = self.message.query
            self.result.set_exception(error)


def trace_parameters(
    result: QueryResult, stages: Sequence[int], level: int, tenant_priority: int
) -> dict[str, Parameter]:
    """The parameters of a traced response: all stages but the answer, which is under way."""
    blocks = [
        {
            "start": block.start,
            "stop": block.stop,
            "cores": len(block.cores),
            "versions": block.versions,
            "elapsed_ns": block.elapsed_ns,
            "queries": block.queries,
        }
        for block in result.blocks
    ]
    return {
        "priority": level,
        "tenant_priority": tenant_priority,
        "queue_ns": result.queue_ns,
        **{f"{stage.name}_ns": taken for stage, taken in zip(STAGES[:ANSWER], stages, strict=False)},
        "blocks": msgspec.json.encode(blocks).decode(),
    }


def wants_trace(parameters: Mapping[str, Parameter]) -> bool:
    return parameters.get(TRACE_PARAMETER) in (True, "true", 1)
