"""Errors by the party at fault, which decides what the caller gets.

A `UserError` is the fault of an input: the command line exits with 2, the server answers with the HTTP status (and gRPC
code name) of the class. An `InvariantError` is a defect of this project.
"""

from __future__ import annotations


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


class RequestError(UserError):
    """An inference request is wrong; the front ends answer with this status and code."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class UnknownModelError(RequestError):
    """No model of this name is served."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class UnsupportedError(RequestError):
    """The request asks for a feature of the protocol that this server does not have."""

    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class TooLargeError(RequestError):
    """The request is larger than the server accepts."""

    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class QueryError(VeltairError):
    """An accepted query was not served; its sender gets exactly one such error."""

    http_status = 500
    grpc_code = "INTERNAL"


class OverloadedError(QueryError):
    """The queue or the tensor pool is full, or admission refused; the answer comes at once, with Retry-After."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class DeadlineError(QueryError):
    """The deadline passed, or cannot be met any more."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class WorkerDiedError(QueryError):
    """The worker process that held the query died; only that worker's queries are lost."""

    http_status = 500
    grpc_code = "INTERNAL"


class InvariantError(VeltairError):
    """An invariant is broken: a defect of this project, never of an input."""
