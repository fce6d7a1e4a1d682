"""`AccessCheck`: who may ask for what over HTTP, before anything of a request is read but its head."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from veltair.access_config import Role
from veltair.errors import RequestError, UnauthenticatedError, UnknownPathError, quoted
from veltair.server.access.callers import Access
from veltair.server.access.inside_protocol import CAME_IN
from veltair.server.protocol.origin_check import send_refusal

REALM = b'Basic realm="veltair", charset="UTF-8"'  # a browser asks for the token as a password


def roles_for(path: str) -> tuple[Role, ...]:
    """The roles of which a path takes one; none: nobody is asked.

    >>> [roles_for(path) for path in ("/v2/health/live", "/v2/models/m/infer", "/metrics", "/v2/repository/index")]
    [(), ('infer',), ('metrics',), ('infer', 'admin')]
    """
    if path in ("/", "/docs", "/openapi.json") or path.startswith("/v2/health/"):
        return ()
    if path == "/admin" or path.startswith(("/admin/", "/v2/repository/models/")):
        return ("admin",)
    if path == "/v2/repository/index":
        return ("infer", "admin")
    return ("metrics",) if path.startswith("/metrics") else ("infer",)


class AccessCheck:
    """An ASGI application around another.

    ::

        app = AccessCheck(application(service, dashboard), Access(config.clients), apart=True)
    """

    def __init__(self, app: ASGIApp, access: Access, *, apart: bool) -> None:
        """`apart`: administration and metrics have an address of their own, where there is no inference."""
        self._app, self._access, self._apart = app, access, apart

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            came_in, certificate = scope.get(CAME_IN, ("main", ""))
            self._admit(scope, came_in, certificate)
        except RequestError as error:
            await send_refusal(send, error.http_status, str(error), _challenge(error, scope["path"]))
            return
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope, came_in: str, certificate: str) -> None:
        path = scope["path"]
        roles = roles_for(path)
        if not roles:
            return
        here = roles != ("infer",) if came_in == "admin" else "infer" in roles
        if self._apart and not here:
            where = "is served elsewhere" if came_in == "admin" else "is served at the address for administration"
            raise UnknownPathError(f"{quoted(path)} {where}")
        authorization = [value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"]
        self._access.admit(authorization, certificate, roles)


def _challenge(error: RequestError, path: str) -> Sequence[tuple[bytes, bytes]]:
    if not isinstance(error, UnauthenticatedError):
        return ()
    return [(b"www-authenticate", b"Bearer" if "infer" in roles_for(path) else REALM)]
