"""What a request names by its target and its Host header: a scheme, a server and its port (RFC 9112, section 3.2)."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from ipaddress import ip_address
from typing import Any

TARGET = "veltair.target"  # of a scope: scheme and authority of an absolute target, or ASTERISK
ASTERISK = ("", "*")  # the target of an OPTIONS that asks about the server as a whole
_ABSOLUTE = re.compile(rb"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)(.*)", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+)(?::(\d{0,5}))?")
_LAST_PORT = 65535


def host_of(authority: str) -> str | None:
    """The host of `uri-host [":" port]` in lower case, an IPv6 address in its brackets; None for what is none.

    URIs of HTTP have neither an empty host nor a user (RFC 9110, section 4.2).

    >>> [host_of(each) for each in ("Localhost:8000", "[::1]", "localhost:", "", "a b", "user@localhost", "a:b")]
    ['localhost', '[::1]', 'localhost', None, None, None, None]
    """
    match = _AUTHORITY.fullmatch(authority)
    if match is None or int(match[2] or 0) > _LAST_PORT:
        return None
    host = match[1].lower()
    if host.startswith("["):
        try:
            ip_address(host[1:-1])
        except ValueError:
            return None
    return host


def split_target(target: bytes, scope: MutableMapping[str, Any]) -> bytes:
    """The path and query of a request's target; what else it says goes into the scope as `TARGET`.

    >>> scope = {}
    >>> split_target(b"http://localhost?a=1", scope), scope
    (b'/?a=1', {'veltair.target': ('http', 'localhost')})
    """
    if target == b"*":
        scope[TARGET] = ASTERISK
        return target
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        return target
    scheme, authority, rest = match.groups()
    scope[TARGET] = scheme.decode("ascii").lower(), authority.decode("latin-1")
    return rest if rest.startswith(b"/") else b"/" + rest
