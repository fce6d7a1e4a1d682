"""The arguments of the Serve application, as its configuration file has them: which machines serve which tenants."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from veltair.config import ServeConfig, ServerConfig, parse_config
from veltair.errors import ConfigError
from veltair.schema_errors import with_key_first

SOURCE = Path("args.config")  # what errors about the daemon's configuration begin with
RouterName: TypeAlias = Literal["deadlines", "two-choices"]
INSIDE = "127.0.0.1:0"  # where a daemon listens whose clients come through Ray


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`args` of the application.

    >>> Arguments(config={}, groups={"machines": ("mlp",)}).direct
    False
    """

    config: dict[str, Any]  # of `veltair serve`, with absolute paths
    groups: dict[str, tuple[str, ...]]  # deployment: the tenants that each of its machines serves
    direct: bool = False  # clients reach the daemons themselves, and Ray only places and heals
    router: RouterName = "deadlines"  # or Ray's own


def read_arguments(raw: Mapping[str, Any]) -> Arguments:
    """Check the arguments. Raises ConfigError with the key, the expected value and the value found."""
    try:
        arguments = msgspec.convert(dict(raw), Arguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"args: {with_key_first(str(error), Arguments, dict(raw))}") from None
    config = parse_config(dict(arguments.config), SOURCE)
    check_groups({name: list(tenants) for name, tenants in arguments.groups.items()}, config, "args.groups")
    return arguments


def check_groups(groups: Mapping[str, list[str]], config: ServeConfig, where: str) -> None:
    """Raises ConfigError unless each tenant of the configuration is in exactly one group. `where`: begins errors."""
    known = [tenant.name for tenant in config.tenants]
    home: dict[str, str] = {}
    for group, tenants in groups.items():
        if not tenants:
            raise ConfigError(f"{where}: {group}: expected at least one tenant")
        for tenant in tenants:
            if tenant not in known:
                expected = ", ".join(known)
                raise ConfigError(f"{where}: {group}: unknown tenant {tenant!r:.80}; the configuration has {expected}")
            if tenant in home:
                raise ConfigError(f"{where}: {group}: tenant {tenant!r:.80} is in group {home[tenant]} already")
            home[tenant] = group
    if missing := [name for name in known if name not in home]:
        raise ConfigError(f"{where}: no group has {', '.join(missing)}")


def group_config(arguments: Arguments, group: str) -> ServeConfig:
    """The configuration of the daemons of a group. Raises ConfigError.

    Where clients come through Ray, each daemon listens on its own machine alone, with administration and metrics at an
    address apart: behind a router a client could not know which machine it administers.
    """
    config = parse_config(dict(arguments.config), SOURCE)
    tenants = tuple(tenant for tenant in config.tenants if tenant.name in arguments.groups[group])
    return msgspec.structs.replace(
        config, server=config.server if arguments.direct else inside(config.server), tenants=tenants
    )


def inside(server: ServerConfig) -> ServerConfig:
    """The same for a daemon that is reached through its replica alone.

    >>> inside(ServerConfig(admin="0.0.0.0:8002")).admin
    '0.0.0.0:8002'
    """
    admin = server.admin or (INSIDE if server.fronts else None)
    return msgspec.structs.replace(server, http=INSIDE, grpc=INSIDE, admin=admin)
