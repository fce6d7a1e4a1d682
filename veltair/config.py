"""The configuration file of `veltair serve`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from veltair.errors import ConfigError

Positive = Annotated[int, msgspec.Meta(gt=0)]
PositiveReal = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    http: str = "127.0.0.1:8000"  # host:port; port 0 takes any free one
    grpc: str = "127.0.0.1:8001"
    policy: str = "veltair"  # docs/policies.md names them all
    planned_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9  # of each target; the rest is the network's
    cores: Positive | None = None  # default: all that the affinity mask and the cgroup quota allow
    workers: Positive | None = None  # queries in flight; default: twice the cores, as memory allows
    spare_workers: Annotated[int, msgspec.Meta(ge=0)] = 1  # loaded and idle, to stand in for one that dies
    queue_slots: Annotated[int, msgspec.Meta(gt=0, le=65536)] = 256  # queries held at once, waiting included
    body_limit_mb: Positive = 64
    shared_memory: bool = False  # clients may put tensors where this user has shared memory
    drain_timeout_s: PositiveReal = 30.0
    counter_model: str | None = None  # coefficients by `veltair profile --fit-proxy`, used where there are L3 counters
    event_log: str | None = None  # JSON lines of every event and decision, for scheduler/replay.py


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    artifact: str
    qos_ms: PositiveReal | None = None  # default: the artifact's
    percentile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    priority: Positive = 1
    batching: bool = True  # queries that wait may run as one batch; off for models whose samples affect each other


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Paths are absolute: relative ones in the file count from the file's folder."""

    server: ServerConfig = ServerConfig()
    tenants: Annotated[tuple[TenantConfig, ...], msgspec.Meta(min_length=1)]


class CounterCoefficients(msgspec.Struct, frozen=True):
    """Of `scheduler.proxy.CounterModel`; whatever else stands in the file is about the fit."""

    constant: float
    per_miss_rate: float
    per_access_per_ns: float


def counter_coefficients(path: Path) -> CounterCoefficients:
    """Reads what `veltair profile --fit-proxy` wrote. Raises ConfigError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CounterCoefficients)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: expected coefficients by `veltair profile --fit-proxy`: {error}") from None


def load(path: Path) -> ServeConfig:
    """Read a configuration file. Raises ConfigError naming the key, what was expected and what stands there."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from None
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    return parse(raw, path)


def parse(raw: dict[str, Any], path: Path) -> ServeConfig:
    """The same for content that was read already; `path` names it in messages and anchors relative paths."""
    try:
        config = msgspec.convert(raw, ServeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_sentence(str(error), raw)}") from None
    seen: set[str] = set()
    for tenant in config.tenants:
        if tenant.name in seen:
            raise ConfigError(f"{path}: tenants: the name {tenant.name!r} stands twice")
        seen.add(tenant.name)
    for key in ("http", "grpc"):
        try:
            split_address(getattr(config.server, key))
        except ConfigError as error:
            raise ConfigError(f"{path}: server.{key}: {error}") from None
    base = path.absolute().parent
    files = {key: getattr(config.server, key) for key in ("event_log", "counter_model")}
    absolute = {key: None if file is None else str(base / file) for key, file in files.items()}
    if absolute["counter_model"] is not None:
        try:
            counter_coefficients(Path(absolute["counter_model"]))
        except ConfigError as error:
            raise ConfigError(f"{path}: server.counter_model: {error}") from None
    return ServeConfig(
        server=msgspec.structs.replace(config.server, **absolute),
        tenants=tuple(msgspec.structs.replace(t, artifact=str(base / t.artifact)) for t in config.tenants),
    )


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[ipv6]:port` in two."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+):(\d{1,5})", address)
    if match is None or int(match[2]) > 65535:
        raise ConfigError(f"expected host:port, got {address!r}")
    return match[1].strip("[]"), int(match[2])


def _sentence(message: str, raw: dict[str, Any]) -> str:
    """msgspec's "<what> - at `$.tenants[0].qos_ms`" as "tenants[0].qos_ms (tenant 'x'): <what>"."""
    what, _, where = message.partition(" - at `$")
    place = where.rstrip("`").lstrip(".")
    if match := re.match(r"tenants\[(\d+)\]", place):
        entries = raw.get("tenants")
        entry = entries[int(match[1])] if isinstance(entries, list) else None
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            place += f" (tenant {entry['name']!r})"
    text = what[0].lower() + what[1:]
    return f"{place}: {text}" if place else text
