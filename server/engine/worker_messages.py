"""`read_message`: what a worker tells by its channel, where it can have meant it.

Workers run what tenants sent, and may say anything. What none says that does as it was told costs that worker alone.
"""

from __future__ import annotations

import msgspec

from veltair.errors import VeltairError
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.worker_process import WorkerProcess
from veltair.server.ipc import messages as m


class BrokenMessageError(VeltairError):
    """A worker says what no worker says in its place."""


def read_message(worker: WorkerProcess, queries: InFlightQueries) -> m.FromWorker | None:
    """The next one; None when there is none now. Raises BrokenMessageError, and ChannelClosedError when its end is
    gone."""
    try:
        message = worker.channel.receive()
    except msgspec.DecodeError as error:
        raise BrokenMessageError(f"a message that is none: {error}") from None
    if message is None or _can_be(worker, message, queries):
        return message
    raise BrokenMessageError(str(message))


def _can_be(worker: WorkerProcess, message: m.FromWorker, queries: InFlightQueries) -> bool:
    match message:
        case m.ModelsLoaded() | m.StartFailed():
            return worker.state == "starting"
        case m.ModelLoaded() | m.ModelFailed() | m.ModelUnloaded():
            return worker.state == "changing" and worker.is_changing(message.number)
        case m.KernelFailed(query=query):  # of a claim: it is no batch yet
            return not queries.has_batch(query) or queries.batch(query).runs_on(worker)
        case m.CoresChanged(query=query):
            return (
                queries.has_batch(query)
                and queries.batch(query).runs_on(worker)
                and queries.batch(query).may_change_cores(message)
            )
