"""The tables of the configuration that say who may do what: `[server.tls]` and `[[clients]]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from veltair.errors import ConfigError

Role = Literal["infer", "metrics", "admin"]
NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
Name = Annotated[str, msgspec.Meta(pattern=NAME_PATTERN)]
DnsName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,253}$")]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]


class TlsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[server.tls]` table. The files are read again when they change, and at a reload.

    >>> TlsConfig(certificate="server.pem", key="server.key").client_authorities is None
    True
    """

    certificate: str  # PEM file: the server's certificate, then those between it and its authority
    key: str  # PEM file, without a passphrase
    client_authorities: str | None = None  # PEM file: every client has to show a certificate of one of these


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[clients]]` table: who may ask, by what it is known, and what it may do.

    >>> ClientConfig(name="shop", certificate="shop.internal").roles
    ('infer',)
    """

    name: Name
    token_sha256: tuple[Sha256, ...] = ()  # of its bearer tokens, any of which is taken; `veltair token` makes one
    certificate: DnsName | None = None  # the name in its certificate: a DNS name, or else the common name
    roles: tuple[Role, ...] = ("infer",)  # infer: models and their metadata; admin: the page, and what changes models
    tenants: tuple[Name, ...] | None = None  # that it may use and see; default: all
    user: str | None = None  # whose shared memory it may name, a user of this machine; default: anybody's


def check_clients(clients: Sequence[ClientConfig], tls: TlsConfig | None) -> None:
    """Raises ConfigError where two clients cannot be told apart, or one can never be known."""
    seen: set[str] = set()
    for client in clients:
        where = f"clients ({client.name!r})"
        if not client.token_sha256 and client.certificate is None:
            raise ConfigError(f"{where}: expected token_sha256 or certificate, by which it is known")
        if client.certificate is not None and (tls is None or tls.client_authorities is None):
            raise ConfigError(f"{where}: certificate: expected client_authorities under [server.tls], which checks it")
        marks = [f"the name {client.name!r}", *(f"the token {digest[:12]}…" for digest in client.token_sha256)]
        if client.certificate is not None:
            marks.append(f"the certificate {client.certificate!r}")
        for mark in marks:
            if mark in seen:
                raise ConfigError(f"{where}: {mark} appears twice")
            seen.add(mark)
