"""`AccessLog`: a line of JSON for each request, whether Python answered it or an I/O thread.

I/O threads count what they have answered, and Python takes the counts from time to time; with an access log they keep
the ids beside them. So a line comes up to a second after its answer, and without an access log nothing is done for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from veltair.errors import FailureReason, QueryError, RefusalReason, RefusedError, RequestError
from veltair.server.front.request_counts import OUTCOMES, outcome_of_error
from veltair.server.ipc.logs.json_lines import utc
from veltair.server.ipc.logs.line_writer import LineWriter
from veltair.server.ipc.stages import EXECUTE
from veltair.server.protocol.failed_queries import CLIENT_CLOSED
from veltair.server.wire.ended_requests import shown_ids

TAKE_S = 1.0  # between two looks at what I/O threads have answered
MOST_ID = 127  # characters; of I/O threads, bytes
MOST_MODEL = 128  # characters of a name that is no model's
_STATUSES = {"ok": 200, "invalid": 400, "cancelled": CLIENT_CLOSED, "failed": 500}
_REFUSALS, _FAILURES = list(RefusalReason), list(FailureReason)


class AccessLog:
    """Lines for a `LineWriter`.

    ::

        log = AccessLog(writer, tenant_of=metrics.tenant_of, model_of=lambda tenant: metrics.tenants[tenant].model)
        threads.log_ended(log.add_ended)
    """

    def __init__(
        self, writer: LineWriter, tenant_of: Callable[[int], str | None], model_of: Callable[[str], str]
    ) -> None:
        """`tenant_of`: by the engine's number. `model_of`: by the tenant's name."""
        self._writer, self._tenant_of, self._model_of = writer, tenant_of, model_of

    async def follow(self, refresh: Callable[[], None]) -> None:
        """Have `refresh` hand on what I/O threads have answered, again and again."""
        while True:
            await asyncio.sleep(TAKE_S)
            refresh()

    def add_ended(self, ended: NDArray[Any], ids: NDArray[Any]) -> None:
        """Requests that have ended without Python: `native.ENDED`, `native.ENDED_ID`."""
        wall_ns = time.time_ns() - time.monotonic_ns()
        names = {number: self._tenant_of(number) for number in np.unique(ended["tenant"]).tolist()}
        models = {number: None if name is None else self._model_of(name) for number, name in names.items()}

        def lines() -> list[bytes]:
            rows = zip(shown_ids(ids), ended_rows(ended), strict=True)
            return [
                _line(wall_ns + end_ns, request_id, names[number], models[number], outcome, status, reason, stages, ns)
                for request_id, (number, end_ns, outcome, status, reason, stages, ns) in rows
            ]

        self._writer.add(len(ended), lines)

    def add_answer(self, request_id: str, tenant: str, stage_ns: Sequence[int]) -> None:
        """A request that Python has answered."""
        now_ns, model = time.time_ns(), self._model_of(tenant)
        self._add(now_ns, request_id, tenant, model, "ok", 200, None, stage_ns, sum(stage_ns))

    def add_error(
        self, request_id: str, tenant: str | None, model: str, error: BaseException, duration_ns: int
    ) -> None:
        """A request that Python has refused, or that failed, or whose client left. `model`: as the client named it."""
        outcome = outcome_of_error(error)
        reason: RefusalReason | FailureReason | None = error.reason if isinstance(error, RefusedError) else None
        status = error.http_status if isinstance(error, QueryError | RequestError) else _STATUSES[outcome]
        if outcome == "failed":
            reason = error.failure if isinstance(error, QueryError) else FailureReason.INTERNAL
        shown = model[:MOST_MODEL] if tenant is None else model
        self._add(time.time_ns(), request_id, tenant, shown, outcome, status, reason, (), duration_ns)

    def _add(self, end_ns: int, request_id: str, *how: Any) -> None:
        self._writer.add(1, lambda: [_line(end_ns, request_id[:MOST_ID], *how)])


def ended_rows(ended: NDArray[Any]) -> Iterator[tuple[int, int, str, int, str | None, Sequence[int], int]]:
    """(tenant's number, end on the monotonic clock, outcome, status, reason, stages, duration) of each."""
    columns = [ended[name].tolist() for name in ("tenant", "end_ns", "outcome", "reason", "stage_ns", "duration_ns")]
    for number, end_ns, code, why, stages, duration_ns in zip(*columns, strict=True):
        outcome = OUTCOMES[code]
        reasons: Sequence[FailureReason | RefusalReason] = _FAILURES if outcome == "failed" else _REFUSALS
        reason = reasons[why - 1] if why else None
        status = reason.http_status if isinstance(reason, RefusalReason) else _STATUSES.get(outcome, 503)
        yield number, end_ns, outcome, status, reason, stages if outcome == "ok" else (), duration_ns


def _line(
    end_ns: int,
    request_id: str,
    tenant: str | None,
    model: str | None,
    outcome: str,
    status: int,
    reason: str | None,
    stage_ns: Sequence[int],
    duration_ns: int,
) -> bytes:
    """`end_ns`: since 1970. `status`: that of HTTP, over gRPC too, so that one search finds both."""
    fields: dict[str, Any] = {
        "time": utc(end_ns / 1e9),
        "level": "INFO",
        "logger": "veltair.access",
        "event": "request",
        "request_id": request_id,
        "tenant": tenant,
        "model": model,
        "outcome": outcome,
        "status": status,
        "duration_ms": duration_ns / 1e6,
    }
    if reason is not None:
        fields["reason"] = str(reason)
    if stage_ns:
        fields |= {"queue_ms": sum(stage_ns[:EXECUTE]) / 1e6, "execute_ms": stage_ns[EXECUTE] / 1e6}
    return msgspec.json.encode(fields) + b"\n"
