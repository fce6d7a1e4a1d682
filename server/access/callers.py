"""`Access`: who asks, and what it may do.

A request shows a bearer token, or its connection a certificate. Roles say what its client may do, `tenants` for whom;
without `[[clients]]` everybody may do everything.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import get_args

from veltair.access_config import ClientConfig, Role
from veltair.errors import ForbiddenError, UnauthenticatedError

ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: `Caller("shop", ("infer",), tenants=frozenset({"dlrm"}))`."""

    name: str
    roles: Sequence[Role]
    tenants: frozenset[str] | None = None  # that it may use and see; None: all
    user: str | None = None  # whose shared memory it may name
    credentials: bytes = b""  # what it has shown: the Authorization header, or the name in its certificate

    def require(self, *roles: Role) -> None:
        """It must have one of them. Raises ForbiddenError."""
        if not set(roles) & set(self.roles):
            raise ForbiddenError(f"client {self.name!r} lacks the role {' or '.join(map(repr, roles))}")

    def sees(self, tenant: str) -> bool:
        """Whether the tenant's models are there for it."""
        return self.tenants is None or tenant in self.tenants


ANYBODY = Caller("anybody", ROLES)
caller: ContextVar[Caller] = ContextVar("caller", default=ANYBODY)  # of the request that is being handled


class Access:
    """The clients of the configuration.

    >>> digest = hashlib.sha256(b"secret").hexdigest()
    >>> access = Access([ClientConfig(name="shop", token_sha256=(digest,))])
    >>> access.identify(["Bearer secret"]).name
    'shop'
    >>> access.identify([])
    Traceback (most recent call last):
    veltair.errors.UnauthenticatedError: expected a bearer token or a certificate of a known client
    """

    def __init__(self, clients: Sequence[ClientConfig] = ()) -> None:
        self.denied = Counter({"unauthenticated": 0, "forbidden": 0})  # requests so far
        self._clients: tuple[ClientConfig, ...] = ()
        self.replace(clients)

    def replace(self, clients: Sequence[ClientConfig]) -> bool:
        """These may ask from here on. Returns whether they are others than before."""
        before, self._clients = self._clients, tuple(clients)
        self._by_token = {digest: client for client in clients for digest in client.token_sha256}
        self._by_certificate = {client.certificate: client for client in clients if client.certificate is not None}
        return self._clients != before

    @property
    def names_callers(self) -> bool:
        """Whether it matters who asks."""
        return bool(self._clients)

    def identify(self, authorization: Sequence[str], certificate: str = "") -> Caller:
        """Who asks, by its Authorization headers, or else the name in its certificate. Raises UnauthenticatedError."""
        if not self.names_callers:
            return ANYBODY
        if authorization:
            token = _token(authorization[0]) if len(authorization) == 1 else ""
            client = self._by_token.get(hashlib.sha256(token.encode("latin-1")).hexdigest()) if token else None
            credentials = authorization[0]
        else:
            client, credentials = self._by_certificate.get(certificate), certificate
        if client is None:
            raise UnauthenticatedError("expected a bearer token or a certificate of a known client")
        tenants = None if client.tenants is None else frozenset(client.tenants)
        return Caller(client.name, client.roles, tenants, client.user, credentials.encode("latin-1"))

    def admit(self, authorization: Sequence[str], certificate: str, roles: Sequence[Role]) -> None:
        """Let the request, which takes one of these roles, be handled as its caller's.

        Raises UnauthenticatedError or ForbiddenError.
        """
        try:
            who = self.identify(authorization, certificate)
            who.require(*roles)
        except (UnauthenticatedError, ForbiddenError) as error:
            self.denied["forbidden" if isinstance(error, ForbiddenError) else "unauthenticated"] += 1
            raise
        caller.set(who)

    def knows(self, who: Caller) -> bool:
        """Whether what it has shown means the same now, after a reload maybe."""
        authorization = who.credentials.decode("latin-1")
        try:
            return self.identify([authorization] if " " in authorization else [], authorization) == who
        except UnauthenticatedError:
            return False


def _token(authorization: str) -> str:
    """The token of an Authorization header; browsers send it as a password. Empty where there is none.

    >>> _token("Bearer abc"), _token("Basic OmFiYw=="), _token("Digest x")
    ('abc', 'abc', '')
    """
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode("latin-1").partition(":")[2]
    except (binascii.Error, ValueError):
        return ""
