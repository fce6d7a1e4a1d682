"""What a request about the repository says besides its path (Triton's model repository extension)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from veltair.errors import RequestError, UnsupportedError, quoted

UNLOAD_DEPENDENTS = "unload_dependents"  # nothing here depends on another model
_Body = TypeVar("_Body", bound=msgspec.Struct)


class _Index(msgspec.Struct, frozen=True):
    ready: bool = False


class _Control(msgspec.Struct, frozen=True):
    parameters: dict[str, Any] = {}


def wants_ready(body: bytes) -> bool:
    """Whether an index over HTTP is of models that are ready alone. Raises RequestError.

    >>> wants_ready(b""), wants_ready(b'{"ready": true}')
    (False, True)
    """
    return _decode(body, _Index, "repository index").ready


def check_control_body(body: bytes, what: str) -> None:
    """Check the body of a load or unload over HTTP. Raises RequestError or UnsupportedError; `what` does not happen.

    >>> check_control_body(b'{"parameters": {"config": "{}"}}', "'mlp' is not loaded")
    Traceback (most recent call last):
    ...
    veltair.errors.UnsupportedError: the parameter 'config' is not supported: models come from their folders alone; \
'mlp' is not loaded
    """
    check_control(_decode(body, _Control, what).parameters, "", what)


def check_control(parameters: Iterable[str], repository: str, what: str) -> None:
    """Check the names of a load's or unload's parameters, and of its repository. Raises UnsupportedError.

    A client that sends a configuration or a model with its request would else believe that it is served.
    """
    for name in parameters:
        if name != UNLOAD_DEPENDENTS:
            text = f"the parameter {quoted(name)} is not supported: models come from their folders alone"
            raise UnsupportedError(f"{text}; {what}")
    check_repository(repository)


def check_repository(name: str) -> None:
    """Check the name of a repository. Raises UnsupportedError."""
    if name:
        raise UnsupportedError(f"there is one repository, which has no name; got {quoted(name)}")


def _decode(body: bytes, kind: type[_Body], what: str) -> _Body:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"{what}: {error}") from None
