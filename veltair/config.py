"""The configuration file of `veltair serve`: its keys, and how it is read and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

import msgspec

from veltair.access_config import ClientConfig, Name, TlsConfig, check_clients
from veltair.address import split_address
from veltair.errors import ConfigError
from veltair.machine.regular_file import read_regular_file
from veltair.schema_errors import with_key_first
from veltair.toml_file import MOST_BYTES, read_toml

Positive = Annotated[int, msgspec.Meta(gt=0, le=10**9)]
Bytes = Annotated[int, msgspec.Meta(gt=0, le=2**62)]
Version = Annotated[int, msgspec.Meta(gt=0, le=2**63 - 1)]  # dates, as some name them, are large
PositiveReal = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
SandboxMode = Literal["try", "require", "off"]
_COLLECTOR = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^:/@\[\]\s]+):\d{1,5}/?")
Versions = Literal["all"] | Version | Annotated[tuple[Version, ...], msgspec.Meta(min_length=1)]


class LimitsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[server.limits]` table: what clients may use up before anything is decided about their queries.

    >>> LimitsConfig(head_s=5).body_s
    60.0
    """

    connections: Positive = 4096  # at the same time; fewer where the system gives fewer descriptors
    connections_per_address: Positive = 2048  # of IPv4, or a /64 of IPv6
    streams: Annotated[int, msgspec.Meta(gt=0, le=4096)] = 1024  # requests at the same time on a connection over gRPC
    header_bytes: Annotated[int, msgspec.Meta(ge=1024, le=16384)] = 16384  # of a head, and of what chunks add
    memory_mb: Positive = 1024  # of requests and answers on their way, a quarter of it for one connection; and unpacked
    unplanned_requests: Positive = 256  # at the same time, of inference in a form that was not seen before
    head_s: PositiveReal = 10.0  # until the head of a request has come
    body_s: PositiveReal = 60.0  # until the rest of it has
    idle_s: PositiveReal = 300.0  # between two requests
    unread_s: PositiveReal = 30.0  # until a client takes an answer, or 64 KB of it


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[server]` table.

    >>> ServerConfig(cores=2).queue_slots
    1024
    """

    http: str = "127.0.0.1:8000"  # host:port; port 0 takes any free one
    grpc: str = "127.0.0.1:8001"
    admin: str | None = None  # the admin page, metrics and model control over HTTP, which are then nowhere else
    hosts: tuple[str, ...] | None = None  # names with a dot that clients use; default: none, or any beyond loopback
    origins: tuple[str, ...] = ()  # of web pages elsewhere that may use it, such as "https://host:8443"
    fronts: Annotated[int, msgspec.Meta(ge=0, le=64)] = 1  # I/O threads; 0: Python alone, slow and without limits
    policy: str = "veltair"  # see docs/policies.md
    planned_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.9  # of each target; the rest is for the network
    cores: Positive | None = None  # default: all that the affinity mask and the cgroup quota allow
    workers: Positive | None = None  # queries in flight; default: twice the cores, as memory allows
    spare_workers: Annotated[int, msgspec.Meta(ge=0)] = 1  # loaded and idle, to replace one that dies
    queue_slots: Annotated[int, msgspec.Meta(gt=0, le=65536)] = 1024  # queries held at once, including waiting ones
    body_limit_mb: Positive = 64
    limits: LimitsConfig = LimitsConfig()
    tls: TlsConfig | None = None  # default: none, which belongs behind a proxy or on this machine alone
    shared_memory: bool = False  # clients may pass tensors in shared memory of this user
    repository: str | None = None  # a folder of models to serve besides the tenants, each in a folder of its name
    model_control: bool = False  # clients may load and unload models, and have the configuration read again
    max_models: Annotated[int, msgspec.Meta(gt=0, le=1024)] = 64  # versions of models in memory at once
    max_resident_bytes: Bytes | None = None  # of models in memory; what was idle longest leaves; default: no bound
    model_wait_s: PositiveReal = 30.0  # that a query waits at most for a model which is not in memory
    load_share: Annotated[float, msgspec.Meta(ge=0.01, le=1)] = 0.1  # of a core, to load models while others compute
    lame_duck_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)] = 0.0  # after SIGTERM: not ready, but serving as before
    drain_timeout_s: PositiveReal = 30.0  # after that: accepted queries are answered, new ones refused
    hung_block_s: PositiveReal = 10.0  # for a block, at least, and 10 times as long as its profile says
    hung_engine_s: PositiveReal = 5.0  # an engine that does not answer for so long is replaced
    sandbox: SandboxMode = "try"  # of workers: as far as the kernel allows; "require": all of it, or no start; "off"
    counter_model: str | None = None  # file of `veltair profile --fit-proxy`, used where there are L3 counters
    log_format: Literal["text", "json"] = "text"  # of the log on stderr; "json": one object a line
    access_log: bool = True  # with log_format = "json": a line for each request
    otel: str | None = None  # a collector that gets traces of queries by OTLP: "http://127.0.0.1:4317"; default: OTEL_*
    otel_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = (
        None  # traced of the queries whose clients say nothing of it; default: OTEL_TRACES_SAMPLER, or none
    )
    event_log: str | None = None  # JSON lines of every event and decision, for `veltair replay`


class TenantConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[tenants]]` table, or the file `tenant.toml` of a model in the repository, without name and artifact.

    `artifact` is the folder of an artifact, which is version 1, or a folder of versions: artifacts in folders with
    numbers as names.

    >>> TenantConfig(name="resnet50", artifact="artifacts/resnet50").percentile
    0.95
    """

    name: Name
    artifact: str
    qos_ms: PositiveReal | None = None  # default: the artifact's
    percentile: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.95
    priority: Positive = 1
    weight: Positive = 1  # its part of the slots, and of the cores where all ask for more than there is
    queue_slots: Annotated[int, msgspec.Meta(gt=0, le=65536)] | None = None  # held at once; default: the server's
    rate: PositiveReal | None = None  # queries a second; more are refused
    burst: Positive = 64  # queries at once, where it has asked for less than its rate before
    batching: bool = True  # waiting queries may run as one batch; off for models whose samples affect each other
    versions: Versions = 1  # that are served: "all", the highest so many, or a list
    resident: bool = False  # it stays in memory, whatever server.max_resident_bytes is


class ServeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file. Paths are absolute here; relative ones in the file start at the file's folder.

    >>> ServeConfig(tenants=(TenantConfig(name="resnet50", artifact="/srv/resnet50"),)).server.policy
    'veltair'
    """

    server: ServerConfig = ServerConfig()
    tenants: tuple[TenantConfig, ...] = ()
    clients: tuple[ClientConfig, ...] = ()  # who may ask; default: everybody, for everything


class CounterCoefficients(msgspec.Struct, frozen=True):
    """Coefficients of `scheduler.interference.CounterModel`. The file's other keys describe the fit.

    >>> CounterCoefficients(0.9, 0.5, 0.02).per_miss_rate
    0.5
    """

    constant: float
    per_miss_rate: float
    per_access_per_ns: float


def read_counter_coefficients(path: Path) -> CounterCoefficients:
    """Read a file of `veltair profile --fit-proxy`. Raises ConfigError."""
    try:
        return msgspec.json.decode(read_regular_file(path, MOST_BYTES), type=CounterCoefficients)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{path}: expected coefficients by `veltair profile --fit-proxy`: {error}") from None


def read_config(path: Path, server: Mapping[str, Any] = MappingProxyType({})) -> ServeConfig:
    """Read a configuration file. `server`: keys of that table that come from elsewhere, and go before the file's.

    Raises ConfigError with the key, the expected value and the value found.
    """
    raw = read_toml(path)
    if server and isinstance(own := raw.get("server", {}), dict):
        raw["server"] = {**own, **server}
    return parse_config(raw, path)


def read_tenant(path: Path, name: str, artifact: Path) -> TenantConfig:
    """A model of the repository: `path` may hold its settings, or not be there. Raises ConfigError."""
    raw = read_toml(path) if _is_there(path) else {}
    for key in ("name", "artifact"):
        if key in raw:
            raise ConfigError(f"{path}: {key}: the folder says it")
    try:
        return msgspec.convert({"name": name, "artifact": str(artifact)} | raw, TenantConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {with_key_first(str(error), TenantConfig, raw)}") from None


def _is_there(path: Path) -> bool:
    """Raises ConfigError where nobody can tell: settings that cannot be read are not the defaults."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    return True


def parse_config(raw: dict[str, Any], path: Path) -> ServeConfig:
    """Check the content of a configuration file. `path` is its place in messages, and the base of relative paths."""
    try:
        config = msgspec.convert(raw, ServeConfig)
    except msgspec.ValidationError as error:
        hint = "; a file with [load] is a scenario of `veltair load` or `veltair simulate`" if "load" in raw else ""
        raise ConfigError(f"{path}: {with_key_first(str(error), ServeConfig, raw)}{hint}") from None
    if not config.tenants and config.server.repository is None:
        raise ConfigError(f"{path}: tenants: expected at least one, or server.repository")
    names: set[str] = set()
    for tenant in config.tenants:
        if tenant.name in names:
            raise ConfigError(f"{path}: tenants: the name {tenant.name!r} appears twice")
        names.add(tenant.name)
    for key in ("http", "grpc", "admin"):
        try:
            if (address := getattr(config.server, key)) is not None:
                split_address(address)
        except ConfigError as error:
            raise ConfigError(f"{path}: server.{key}: {error}") from None
    if config.server.otel is not None and not _COLLECTOR.fullmatch(config.server.otel):
        expected = "expected http://HOST:PORT or https://HOST:PORT"
        raise ConfigError(f"{path}: server.otel: {expected}, found {config.server.otel!r}")
    if not config.server.fronts and (config.server.tls or config.server.admin):
        raise ConfigError(f"{path}: server.fronts: expected at least 1 with tls or admin")
    try:
        check_clients(config.clients, config.server.tls)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    base = path.absolute().parent
    files = {key: getattr(config.server, key) for key in ("event_log", "counter_model", "repository")}
    try:
        absolute = _with_absolute(files, base, "server.")
        tls = config.server.tls and msgspec.structs.replace(
            config.server.tls, **_with_absolute(msgspec.structs.asdict(config.server.tls), base, "server.tls.")
        )
        tenants = tuple(
            msgspec.structs.replace(t, **_with_absolute({"artifact": t.artifact}, base, f"tenants: {t.name}: "))
            for t in config.tenants
        )
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if absolute["counter_model"] is not None:
        try:
            read_counter_coefficients(Path(absolute["counter_model"]))
        except ConfigError as error:
            raise ConfigError(f"{path}: server.counter_model: {error}") from None
    server = msgspec.structs.replace(config.server, **absolute, tls=tls)
    return ServeConfig(server=server, clients=config.clients, tenants=tenants)


def _with_absolute(files: Mapping[str, str | None], base: Path, table: str) -> dict[str, str | None]:
    """Raises ConfigError for a path that is not UTF-8, which messages between processes cannot have."""
    absolute = {key: None if file is None else str(base / file) for key, file in files.items()}
    for key, file in absolute.items():
        try:
            os.fsencode(file or "").decode("utf-8")
        except UnicodeDecodeError:
            raise ConfigError(f"{table}{key}: expected a path in UTF-8, found {file!r}") from None
    return absolute


def changed_keys(before: msgspec.Struct | None, after: msgspec.Struct | None, table: str) -> list[str]:
    """The keys whose values differ between two tables of one kind, as a message names them.

    >>> changed_keys(ServerConfig(), ServerConfig(workers=3, limits=LimitsConfig(head_s=5)), "server")
    ['server.workers', 'server.limits.head_s']
    """
    if before is None or after is None:
        return [] if before is after else [table]
    changed = []
    for name in before.__struct_fields__:
        old, new, key = getattr(before, name), getattr(after, name), f"{table}.{name}"
        if isinstance(old, msgspec.Struct) or isinstance(new, msgspec.Struct):
            changed += changed_keys(old, new, key)
        elif old != new:
            changed.append(key)
    return changed
