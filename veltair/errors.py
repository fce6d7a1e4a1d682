"""Errors, split by who is to blame and therefore by what the caller sees.

`UserError` and its children are the fault of an input: the command line exits with 2, the server answers with
the HTTP status (and gRPC code name) of the class. `InvariantError` is ours.
"""

from __future__ import annotations


class VeltairError(Exception):
    """Base of everything that this project raises on purpose."""


class UserError(VeltairError):
    """Something that was handed in is wrong; the text says what was expected and where."""


class ConfigError(UserError):
    """A configuration, scenario or command-line value is wrong."""


class ModelError(UserError):
    """An ONNX file cannot be taken: no ONNX, unsafe external data, an unsupported operator, …"""


class ArtifactError(UserError):
    """A model artifact is truncated, altered, or was built for another machine."""


class ProfileError(ArtifactError):
    """The profile inside an artifact is inconsistent, e.g. `resnet50: layer 7 has no code version`."""


class RequestError(UserError):
    """An inference request is wrong. The status and code are what the two front ends answer with."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class UnknownModelError(RequestError):
    http_status = 404
    grpc_code = "NOT_FOUND"


class UnsupportedError(RequestError):
    http_status = 501
    grpc_code = "UNIMPLEMENTED"


class TooLargeError(RequestError):
    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class QueryError(VeltairError):
    """An accepted query was not served; its sender gets exactly one of these."""

    http_status = 500
    grpc_code = "INTERNAL"


class OverloadedError(QueryError):
    """No room: queue, tensor pool or admission said no. Answered at once, with Retry-After."""

    http_status = 503
    grpc_code = "UNAVAILABLE"


class DeadlineError(QueryError):
    """The deadline passed, or cannot be met any more."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class WorkerDiedError(QueryError):
    """The worker process that held the query died; only its own queries are lost."""

    http_status = 500
    grpc_code = "INTERNAL"


class InvariantError(VeltairError):
    """A rule of ours was broken: a defect of this project, never of an input."""
