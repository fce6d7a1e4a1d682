"""Errors by the party at fault, which decides what the caller gets.

A `UserError` is the fault of an input: the command line exits with 2, the server answers with the HTTP status (and gRPC
code name) of the class. An `InvariantError` is a defect of this project.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property


def quoted(value: object, most: int = 80) -> str:
    r"""What a client sent, for the text of an error: printable, in quotes that are closed, and cut.

    >>> quoted("a" * 100, most=8), quoted("it is\\n"), quoted(2.5)
    ("'aaaaaaaa'…", "'it is\\\\n'", '2.5')
    """
    if not isinstance(value, str):
        shown = repr(value)
        return shown if len(shown) <= most else f"{shown[:most]}…"
    kept = value[:most]
    while len(shown := repr(kept)) > most + 2:  # a character may be shown as ten
        kept = kept[: -1 - (len(shown) - most - 3) // 10]
    return shown if len(kept) == len(value) else f"{shown}…"


class VeltairError(Exception):
    """Base of all errors that this project raises on purpose."""


class UserError(VeltairError):
    """An input is wrong; the text says what was expected and where."""


class ConfigError(UserError):
    """A configuration, scenario or command-line value is wrong."""


class ModelError(UserError):
    """An ONNX file cannot be compiled: it is no ONNX, has unsafe external data or an unsupported operator, …"""


class ArtifactError(UserError):
    """A model artifact is truncated, altered, or was built for another machine."""


class ProfileError(ArtifactError):
    """The profile inside an artifact is inconsistent, e.g. `resnet50: layer 7 has no code version`."""


class DataError(UserError):
    """Data beside a model are wrong: a column or an array is missing, of another type or shape, has nulls, …"""


class RequestError(UserError):
    """An inference request is wrong; the front ends answer with this status and code."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class UnknownModelError(RequestError):
    """No model of this name is served."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class UnknownPathError(RequestError):
    """Nothing is served under this path, at this address."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class UnauthenticatedError(RequestError):
    """Nobody knows who asks."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"


class ForbiddenError(RequestError):
    """The client may not do this."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class UnsupportedError(RequestError):
    """The request asks for a feature of the protocol that this server does not have."""

    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class TooLargeError(RequestError):
    """The request is larger than the server accepts."""

    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class FailureReason(StrEnum):
    """Why a query failed, from a fixed list: a label for metrics. The text that says more is in the log.

    The I/O threads know the reasons by their `number`.

    >>> WorkerDiedError("gone").failure.value, QueryError("a bug").failure.value
    ('worker_died', 'internal')
    """

    KERNEL = "kernel"  # a kernel of the model raised an error
    WORKER_DIED = "worker_died"
    ENGINE_DIED = "engine_died"
    SHUTDOWN = "shutdown"  # the server ended before the query was answered
    INTERNAL = "internal"  # all else

    @cached_property
    def number(self) -> int:
        """The place of the reason in the list, from 1 on."""
        return 1 + list(FailureReason).index(self)


class QueryError(VeltairError):
    """An accepted query was not served; its sender gets exactly one such error."""

    query: int | None = None  # its number, where it had got one
    failure = FailureReason.INTERNAL
    http_status = 500
    grpc_code = "INTERNAL"


class RefusalReason(StrEnum):
    """Why a query is refused, from a fixed list: a label for logs and metrics.

    `text` is what the client reads, the same for every refusal of its kind, so that clients can group them.

    The I/O threads know the reasons by their `number`.

    >>> RefusalReason.OVERLOAD.value, RefusalReason.OVERLOAD.grpc_code, RefusalReason.OVERLOAD.http_status
    ('overload', 'RESOURCE_EXHAUSTED', 503)
    >>> RefusalReason.OVERLOAD.text
    'the queries before it leave it too little time'
    """

    LATE_ON_ARRIVAL = "late_on_arrival"
    DEADLINE = "deadline"
    SLOTS = "slots"
    OVERLOAD = "overload"
    MEMORY = "memory"
    SLOW = "slow_request"
    BUSY = "busy"
    HEAD = "head"
    RATE = "rate"
    NO_TIME = "no_time"
    OVERDUE = "overdue"
    BATCH = "batch"
    VIEWERS = "viewers"
    NO_WORKER = "no_worker"
    RESTARTING = "restarting"
    DRAINING = "draining"
    NOT_RESIDENT = "not_resident"

    @property
    def text(self) -> str:
        return _TEXTS[self]

    @property
    def http_status(self) -> int:
        if self in _STATUSES:
            return _STATUSES[self]
        return 504 if self in _DEADLINES else 503

    @property
    def grpc_code(self) -> str:
        if self in _DEADLINES or self is RefusalReason.SLOW:
            return "DEADLINE_EXCEEDED"
        return "UNAVAILABLE" if self in _UNAVAILABLE else "RESOURCE_EXHAUSTED"

    @cached_property
    def number(self) -> int:
        """The place of the reason in the list, from 1 on."""
        return 1 + list(RefusalReason).index(self)


_TEXTS = {
    RefusalReason.LATE_ON_ARRIVAL: "the deadline had passed when the request was read",
    RefusalReason.DEADLINE: "the deadline passed before the query was answered",
    RefusalReason.SLOTS: "as many queries are held already as this server takes; try later",
    RefusalReason.OVERLOAD: "the queries before it leave it too little time",
    RefusalReason.MEMORY: "the memory for requests that are on their way is used up; try later",
    RefusalReason.SLOW: "the request took too long to arrive",
    RefusalReason.BUSY: "as many requests of an unusual form are handled already as this server takes; try later",
    RefusalReason.HEAD: "the head of the request is larger than this server takes",
    RefusalReason.RATE: "the tenant has asked more often than its rate allows; try later",
    RefusalReason.NO_TIME: "the time left until its deadline is too short for it",
    RefusalReason.OVERDUE: "it has waited so long that it cannot be in time any more",
    RefusalReason.BATCH: "it has more items than the model takes in a query",
    RefusalReason.VIEWERS: "as many dashboards are open already as this server shows",
    RefusalReason.NO_WORKER: "no worker can take queries at the moment",
    RefusalReason.RESTARTING: "the engine is restarting",
    RefusalReason.DRAINING: "the server is shutting down",
    RefusalReason.NOT_RESIDENT: "the model is not in memory, and cannot be there in time; try later",
}
_STATUSES = {RefusalReason.SLOW: 408, RefusalReason.HEAD: 431}
_DEADLINES = (RefusalReason.LATE_ON_ARRIVAL, RefusalReason.DEADLINE)
_UNAVAILABLE = (
    RefusalReason.NO_WORKER,
    RefusalReason.RESTARTING,
    RefusalReason.DRAINING,
    RefusalReason.NOT_RESIDENT,
)


class RefusedError(QueryError):
    """A query was refused or given up, for a reason of the fixed list.

    >>> error = OverloadedError(RefusalReason.SLOTS)
    >>> error.http_status, error.grpc_code, error.reason.value
    (503, 'RESOURCE_EXHAUSTED', 'slots')
    """

    def __init__(self, reason: RefusalReason) -> None:
        super().__init__(reason.text)
        self.reason = reason
        self.http_status, self.grpc_code = reason.http_status, reason.grpc_code


class OverloadedError(RefusedError):
    """A budget is spent, or admission refused; the answer comes at once, with Retry-After."""

    http_status = 503
    grpc_code = "RESOURCE_EXHAUSTED"


class DeadlineError(RefusedError):
    """The deadline passed, or cannot be met any more."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class KernelError(QueryError):
    """A kernel of the model failed over this query."""

    failure = FailureReason.KERNEL


class WorkerDiedError(QueryError):
    """The worker process that held the query died; only that worker's queries are lost."""

    failure = FailureReason.WORKER_DIED


class EngineDiedError(WorkerDiedError):
    """The engine process died, and with it all queries that it held."""

    failure = FailureReason.ENGINE_DIED


class ShutdownError(QueryError):
    """The server ended before the query was answered."""

    failure = FailureReason.SHUTDOWN


class InvariantError(VeltairError):
    """An invariant is broken: a defect of this project, never of an input."""


def error_of_kind(kind: str, reason: str) -> VeltairError:
    """The error that another process names by its class.

    >>> error_of_kind("ArtifactError", "no kernel")
    ArtifactError('no kernel')
    """
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, VeltairError):
        return found(reason)
    return VeltairError(f"{kind}: {reason}")
