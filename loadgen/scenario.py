"""The scenario file of `veltair load`: the daemon, the tenants, their rates and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from veltair.errors import ConfigError
from veltair.schema_errors import with_key_first
from veltair.toml_file import read_toml

MAX_QUERIES = 10_000_000  # one run's queries are held in memory, about 100 bytes each
MAX_CONNECTIONS = 256

Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=86_400)]
Size: TypeAlias = Annotated[int, Meta(ge=1, le=65_536)]
# Not tuple[Size, Size]: msgspec 0.22 crashes on a constrained int in a union with a tuple of fixed length.
Span: TypeAlias = Annotated[tuple[Size, ...], Meta(min_length=2, max_length=2)]


class LogNormalSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Batch sizes with normal logarithms; the defaults are the query sizes of recommendation (DeepRecSys).

    >>> LogNormalSizes(most=256).log_mean
    5.1
    """

    log_mean: Annotated[float, Meta(ge=0, le=11)] = 5.1
    log_sigma: Annotated[float, Meta(ge=0, le=5)] = 0.2
    most: Size = 1024  # and never above the model's largest batch


class LoadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The `[load]` table: the daemon, the length of a run, the client's settings.

    >>> LoadSettings("grpc://127.0.0.1:8001").port
    8001
    """

    target: str  # grpc://HOST:PORT or http://HOST:PORT
    duration_s: Seconds = 30.0  # measured part of a run, after the warm-up
    warmup_s: Annotated[float, Meta(ge=0, le=3_600)] = 2.0  # same load, not counted
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 1
    connections: Annotated[int, Meta(ge=1, le=MAX_CONNECTIONS)] = (
        4  # gRPC: of each tenant; HTTP: at first, more when all are busy
    )
    timeout_s: Seconds = 10.0  # a query without a response by then is an error
    shared_memory: bool = False  # queries refer to memory of this machine instead of carrying their tensors

    @property
    def scheme(self) -> str:
        return urlsplit(self.target).scheme

    @property
    def host(self) -> str:
        return urlsplit(self.target).hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(self.target).port or 0


class TenantLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A `[[tenants]]` table: one model's rate, target and batch sizes.

    >>> TenantLoad("resnet50", qps=40, target_ms=25).percentile
    0.95
    """

    name: Annotated[str, Meta(min_length=1)]  # of the served model
    qps: Annotated[float, Meta(gt=0, le=1_000_000)]
    target_ms: Annotated[float, Meta(gt=0, le=3_600_000)]  # scheduled arrival to answer
    percentile: Annotated[float, Meta(gt=0, le=1)] = 0.95  # share of the queries that must meet target_ms
    batch: Size | Span | LogNormalSizes | None = None  # a span is uniform, both ends included; None: 1


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario file.

    >>> load = LoadSettings("grpc://127.0.0.1:8001")
    >>> Scenario(load, (TenantLoad("resnet50", qps=40, target_ms=25),)).tenants[0].name
    'resnet50'
    """

    load: LoadSettings
    tenants: Annotated[tuple[TenantLoad, ...], Meta(min_length=1)]


def read_scenario(path: Path) -> Scenario:
    """Read and check a scenario file. Raises ConfigError with one line that names the file and the key."""
    document = read_toml(path)
    return parse_scenario(document, str(path))


def parse_scenario(document: Any, where: str) -> Scenario:
    """Check the content of a scenario file. Raises ConfigError, which begins with `where`."""
    try:
        scenario = msgspec.convert(document, Scenario)
        _check(scenario)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {with_key_first(str(error), Scenario)}{_other_command(document)}") from None
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return scenario


def _other_command(document: Any) -> str:
    """Which command takes this file, where it is not a load generator's."""
    load = document.get("load") if isinstance(document, dict) else None
    if isinstance(load, dict) and "target" not in load:
        return "; a scenario without an address is one of `veltair simulate`"
    return "; a file with [server] is a configuration of `veltair serve`" if "server" in document else ""


def _check(scenario: Scenario) -> None:
    """Check what the types of single fields do not express."""
    load = scenario.load
    try:
        url = urlsplit(load.target)
        fits = url.scheme in ("http", "grpc") and url.hostname and url.port and not (url.path or url.query)
    except ValueError:  # a port out of range, a broken IPv6 address
        fits = False
    if not fits or "@" in load.target:
        raise ConfigError(f"load.target: expected http://HOST:PORT or grpc://HOST:PORT, got `{load.target}`")
    names: set[str] = set()
    for i, tenant in enumerate(scenario.tenants):
        if tenant.name in names:
            raise ConfigError(f"tenants[{i}].name: `{tenant.name}` appears twice")
        names.add(tenant.name)
        if isinstance(tenant.batch, tuple) and tenant.batch[0] > tenant.batch[1]:
            raise ConfigError(f"tenants[{i}].batch: expected [low, high], got {list(tenant.batch)}")
        queries = tenant.qps * (load.warmup_s + load.duration_s)
        if queries > MAX_QUERIES:
            raise ConfigError(f"tenants[{i}].qps: {queries:.0f} queries in one run, expected at most {MAX_QUERIES}")
