"""`OriginCheck`: keeps web pages from using a visitor's browser against this server.

A page may send requests to any address, also to one that only its visitor reaches. Reading the answers takes a name
that leads here (DNS rebinding), so names have to be known. What a page of another origin asks for is refused whatever
the method, since a stream that it holds open costs too; it may lead here by a link alone. Browsers say who asks by
Origin and Sec-Fetch-Site, and clients other than browsers send neither. Pages that the configuration allows get what
browsers want to see before they let a page ask and read (CORS, Fetch section 3.2).
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from veltair.errors import quoted
from veltair.server.protocol.request_target import ASTERISK, TARGET, host_of

ANY = "*"
_SAFE = ("GET", "HEAD", "OPTIONS")
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
    found = host_of(host)
    if found is None:
        return False
    name = found.rstrip(".")
    if ANY in known or name in known or not set(name) & set(".[]%"):
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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = _only_values(scope["headers"])
        target = scope.get(TARGET)
        refusal = _fault(scope, headers, target)
        if refusal is not None:
            await send_refusal(send, *refusal)
            return
        if target is not None and target is not ASTERISK:  # whatever Host says (RFC 9112, 3.2.2)
            authority = target[1].encode("latin-1")
            scope = {
                **scope,
                "headers": [(b"host", authority), *(each for each in scope["headers"] if each[0] != b"host")],
            }
            headers[b"host"] = target[1]
        allowed = (origin := headers.get(b"origin", "")) in self._origins
        refusal = self._refusal(scope, headers, allowed=allowed)
        if refusal is not None:
            await send_refusal(send, *refusal)
        elif target is ASTERISK:
            await _answer_for_the_server(send)
        elif not allowed:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and b"access-control-request-method" in headers:
            await _answer_preflight(send, origin, headers)
        else:
            await self._app(scope, receive, _readable_by(origin, send))

    def _refusal(self, scope: Scope, headers: dict[bytes, str], *, allowed: bool) -> tuple[int, str] | None:
        host = headers.get(b"host")
        if host is not None and not is_known(host, self._hosts):
            return 421, f"this server is not called {quoted(host)}; `hosts` under [server] adds names"
        if not allowed and _is_foreign(headers) and not _follows_a_link(scope["method"], headers):
            page = quoted(origin) if (origin := headers.get(b"origin")) else "another site"
            return 403, f"pages of {page} may not use this server; `origins` under [server] adds some"
        kind = headers.get(b"content-type", "").partition(";")[0].strip().lower()
        if scope["method"] not in _SAFE and kind in _FORM_TYPES and "sharedmemory" in scope["path"]:
            return 415, f"shared memory is registered with application/json, not {kind}"
        return None


def _fault(scope: Scope, headers: dict[bytes, str], target: tuple[str, str] | None) -> tuple[int, str] | None:
    """What is wrong with what a request says about where it goes, and where it comes from."""
    for name in (b"host", b"origin", b"sec-fetch-site"):
        count = sum(name == each for each, _ in scope["headers"])
        missing = name == b"host" and not count and scope["http_version"] == "1.1"  # RFC 9112, 3.2
        if count > 1 or missing:
            return 400, f"a request has one {name.decode().title()} header, this one has {count or 'none'}"
    absolute = target is not None and target is not ASTERISK
    host = headers.get(b"host")
    if host is not None and host_of(host) is None and (host or not absolute):  # no more than a target needs
        return 400, f"a Host header is the name or address of a server and its port, not {quoted(host)}"
    if target is None:
        return None
    scheme, authority = target
    if target is ASTERISK:
        wrong = scope["method"] != "OPTIONS"
        return (400, f"the target of {scope['method']} is a path, not '*'") if wrong else None
    if host_of(authority) is None:
        return 400, f"the target names no server by its name or address and port: {quoted(authority)}"
    if scheme != scope["scheme"]:
        return 421, f"this server answers for {scope['scheme']} here, not for {quoted(scheme)}"
    return None


def _only_values(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    return {name: value.decode("latin-1") for name, value in headers}


def _is_foreign(headers: dict[bytes, str]) -> bool:
    """Whether a page asks that did not come from this server."""
    origin = headers.get(b"origin")
    if origin is None:
        return headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")
    return _server_of(origin) != headers.get(b"host")


def _server_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # as in http://[
        return None


def _follows_a_link(method: str, headers: dict[bytes, str]) -> bool:
    """Whether the browser leaves the page for what it asks for, in a tab of its own."""
    mode, into = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest", "document")
    return method in ("GET", "HEAD") and b"origin" not in headers and mode == "navigate" and into == "document"


async def _answer_for_the_server(send: Send) -> None:
    """Answer `OPTIONS *`: methods that some paths take (RFC 9110, section 9.3.7)."""
    headers = [(b"allow", b"GET, HEAD, POST, OPTIONS"), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body"})


async def _answer_preflight(send: Send, origin: str, headers: dict[bytes, str]) -> None:
    """Let an allowed page ask (Fetch, section 3.2.2). Whatever it asks for is checked when it does."""
    answer = [
        *_cors(origin),
        (b"access-control-allow-methods", b"GET, HEAD, POST"),
        (b"access-control-max-age", b"600"),
    ]
    if wanted := headers.get(b"access-control-request-headers"):
        answer.append((b"access-control-allow-headers", wanted.encode("latin-1")))
    if headers.get(b"access-control-request-private-network") == "true":  # a public page, a server at home
        answer.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body"})


def _readable_by(origin: str, send: Send) -> Send:
    """`send`, with answers that a page of this origin may read."""

    async def send_readable(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *_cors(origin)]
        await send(message)

    return send_readable


def _cors(origin: str) -> list[tuple[bytes, bytes]]:
    return [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"Origin"),
    ]


async def send_refusal(send: Send, status: int, text: str, more: Sequence[tuple[bytes, bytes]] = ()) -> None:
    """Answer in an application's place, with these headers besides; the rest of the request is not read."""
    body = msgspec.json.encode({"error": text})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": body})
