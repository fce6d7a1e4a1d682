"""`OriginCheck`: keeps web pages from using a visitor's browser against this server.

A page may send requests to any address, also to one that only its visitor reaches. Reading the answers takes a name
that leads here (DNS rebinding), so names have to be known; changing something takes a POST, whose Origin has to be
this server or one that the configuration allows. Clients other than browsers send no Origin.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

ANY = "*"
_SAFE = ("GET", "HEAD", "OPTIONS")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
# What a form or a script of another origin may send without asking first (Fetch, section 2.2.2).
_FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")


def known_hosts(listening: str, configured: Iterable[str] | None) -> frozenset[str]:
    """Names by which clients may call this server, in lower case; `ANY` among them: any.

    A server that only this machine reaches is called localhost; who listens to others is called as its operator
    likes. Addresses and names without a dot are always allowed: nobody outside can make them lead here.

    >>> known_hosts("127.0.0.1", None), known_hosts("0.0.0.0", None), sorted(known_hosts("::1", ["My.host"]))
    (frozenset({'localhost'}), frozenset({'*'}), ['localhost', 'my.host'])
    """
    if configured is None:
        return frozenset(("localhost",)) if _is_loopback(listening) else frozenset((ANY,))
    return frozenset(("localhost", *(name.lower() for name in configured)))


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return ip_address(socket.gethostbyname(host)).is_loopback


def is_known(host: str, known: Collection[str]) -> bool:
    """Whether a Host header names this server.

    >>> [is_known(host, {"localhost"}) for host in ("localhost:8000", "127.0.0.1", "[::1]:80", "evil.example")]
    [True, True, True, False]
    """
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    name = match[1].lower().rstrip(".")
    if ANY in known or name in known or not set(name) & set(".[]"):
        return True
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class OriginCheck:
    """An ASGI application around another: refuses what a foreign web page asks for.

    ::

        app = OriginCheck(application(service, dashboard), known_hosts("127.0.0.1", None), origins=())
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        """`origins`: of other servers' pages that may use this one, as `https://host:port`."""
        self._app, self._hosts, self._origins = app, hosts, frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, text = refusal
        await send_refusal(send, status, text)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        hosts = sum(name == b"host" for name, _ in scope["headers"])
        if hosts > 1 or (not hosts and scope["http_version"] == "1.1"):  # RFC 9112, 3.2
            return 400, f"a request has one Host header, this one has {hosts or 'none'}"
        host = headers.get(b"host")
        if host is not None and not is_known(host, self._hosts):
            return 421, f"this server is not called {host!r:.80}; `hosts` under [server] adds names"
        if scope["method"] in _SAFE:
            return None
        origin = headers.get(b"origin")
        if origin is None:
            foreign = headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")
        else:
            foreign = origin not in self._origins and urlsplit(origin).netloc != host
        if foreign:
            page = repr(origin)[:80] if origin else "another site"
            return 403, f"pages of {page} may not use this server; `origins` under [server] adds some"
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if kind in _FORM_TYPES and "sharedmemory" in scope["path"]:
            return 415, f"shared memory is registered with application/json, not {kind}"
        return None


async def send_refusal(send: Send, status: int, text: str, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer in an application's place, with these headers besides; the rest of the request is not read."""
    body = msgspec.json.encode({"error": text})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
