"""From an error that `tritonclient` raises to the class of `veltair.errors` that the server raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tritonclient.utils import InferenceServerException

from veltair import errors
from veltair.errors import DeadlineError, OverloadedError, QueryError, RefusalReason, RefusedError, VeltairError

# By HTTP status and by gRPC code. Refusals are told by their texts, which are a fixed list.
_KINDS: dict[str, type[VeltairError]] = {
    name: kind
    for kind in (
        *(errors.UnauthenticatedError, errors.ForbiddenError, errors.UnsupportedError, errors.TooLargeError),
        *(errors.UnknownModelError, errors.RequestError, errors.QueryError),
    )
    for name in (str(kind.http_status), kind.grpc_code)
}
_REASONS = {reason.text: reason for reason in RefusalReason}
_UNREACHABLE = ("", "UNAVAILABLE")  # without a text of ours: no server said so


@contextmanager
def server_errors(address: str) -> Iterator[None]:
    """Raise what the server at `address` said as an error of this project; ConnectionError where nobody answers."""
    try:
        yield
    except InferenceServerException as error:
        raise error_of(str(error.status() or ""), str(error.message()), address) from None
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from None


def error_of(status: str, message: str, address: str) -> Exception:
    """The error of a response.

    >>> error_of("StatusCode.NOT_FOUND", "unknown model 'm'", "grpc://[::1]:8001")
    UnknownModelError("unknown model 'm'")
    >>> error_of("503", "the server is shutting down", "http://[::1]:8000").reason.value
    'draining'
    """
    code = status.removeprefix("StatusCode.")
    reason = next((reason for text, reason in _REASONS.items() if message.endswith(text)), None)
    if reason is not None:
        return _refusal(reason)
    if code == "DEADLINE_EXCEEDED":  # the call's own clock, before any word of the server
        return DeadlineError(RefusalReason.DEADLINE)
    if code in _UNREACHABLE:
        return ConnectionError(f"{address}: {message}")
    return _KINDS.get(code, QueryError)(message)


def _refusal(reason: RefusalReason) -> RefusedError:
    late = reason.grpc_code == DeadlineError.grpc_code
    return DeadlineError(reason) if late else OverloadedError(reason)
