"""What the protocol asks of the header lists of a request (RFC 9113, sections 8.2 and 8.3)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from veltair.grpc.http2.hpack import Field

_PSEUDO = (":method", ":scheme", ":path", ":authority")
_REQUIRED = (":method", ":scheme", ":path")
_OF_CONNECTIONS = ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")  # of HTTP/1.1 alone
_NAME = re.compile(r"[\x21-\x39\x3b-\x40\x5b-\x7e]+")  # visible, without a colon and without capital letters
_LENGTH = re.compile(r"[0-9]{1,18}")


class InvalidFieldsError(ValueError):
    """A header list breaks the protocol."""


def check_request(fields: Sequence[Field]) -> int | None:
    """The content-length of a request with this head, if it says one. Raises InvalidFieldsError.

    >>> check_request([(":method", "POST"), (":scheme", "http"), (":path", "/"), ("content-length", "5")])
    5
    """
    pseudo = 0
    while pseudo < len(fields) and fields[pseudo][0].startswith(":"):
        pseudo += 1
    found = dict(fields[:pseudo])
    if len(found) < pseudo or not all(name in _PSEUDO and _is_value(value) for name, value in found.items()):
        raise InvalidFieldsError("a pseudo-header field that is unknown or appears twice")
    if not all(name in found for name in _REQUIRED) or not found[":path"]:
        raise InvalidFieldsError("a pseudo-header field is missing")
    _check_regular(fields[pseudo:])
    _check_authority(found.get(":authority"), [value for name, value in fields[pseudo:] if name == "host"])
    texts = [value for name, value in fields[pseudo:] if name == "content-length"]
    lengths = {int(text) if _LENGTH.fullmatch(text) else None for text in texts}
    if len(lengths) > 1 or None in lengths:
        raise InvalidFieldsError("a content-length that is no number, or two of them")
    return lengths.pop() if lengths else None


def are_trailers(fields: Sequence[Field]) -> bool:
    """Whether nothing but regular fields stands there.

    >>> are_trailers([("k", "v")]), are_trailers([(":path", "/")])
    (True, False)
    """
    try:
        _check_regular(fields)
    except InvalidFieldsError:
        return False
    return True


def _check_regular(fields: Sequence[Field]) -> None:
    for name, value in fields:
        if not _NAME.fullmatch(name) or not _is_value(value):
            raise InvalidFieldsError("a field with a name or value that is not allowed")
        if name in _OF_CONNECTIONS or (name == "te" and value != "trailers"):
            raise InvalidFieldsError("a field of HTTP/1.1")


def _check_authority(authority: str | None, hosts: Sequence[str]) -> None:
    """A request goes to one server, and names no user of it (RFC 9113, section 8.3.1)."""
    names = hosts if authority is None else [*hosts, authority]
    differ = len(names) > 1 and names[0].encode("latin-1").lower() != names[1].encode("latin-1").lower()
    if len(hosts) > 1 or differ or any("@" in name for name in names):
        raise InvalidFieldsError("a host that is no server, or another one than the authority")


def _is_value(value: str) -> bool:
    return not any(byte in value for byte in "\0\r\n")
