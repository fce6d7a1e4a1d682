"""The scenario file of `veltair simulate`: which tenants ask, how often, and by when each answer is due."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from veltair.errors import ConfigError

MOST_QUERIES = 10_000_000  # of one run: all are held in memory

Positive = Annotated[float, Meta(gt=0, le=1e9)]


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queries: Annotated[int, Meta(ge=1, le=MOST_QUERIES)] | None = None  # of all tenants together, warm-up included
    duration_s: Positive | None = None  # instead of `queries`: arrivals stop then
    warmup: Annotated[float, Meta(ge=0, lt=1)] = 0.1  # share of the run that is not counted
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 1
    proxy: Literal["counters", "observed", "demand"] = "observed"  # where the interference level comes from
    workers: Annotated[int, Meta(ge=1)] | None = None  # queries in flight; default: one for each core
    planned_share: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of each target, what policies plan with
    layer_qos: Literal["time", "ops"] = "time"  # what the paper's policies give layers their share of a target by
    domain_aware: bool = True  # cores that share an L3 are handed out together; else those of the lowest numbers
    grows_inside_layers: bool = False  # a block that lacked cores gets more at once, else between two of its layers


class TenantLoad(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1)]
    model: str = ""  # a model of the zoo, or an artifact's folder; default: the tenant's name
    qps: Positive
    target_ms: Annotated[float, Meta(gt=0, le=3_600_000)]  # arrival to answer
    percentile: Annotated[float, Meta(gt=0, le=1)] = 0.95  # share of the queries that must meet target_ms
    priority: Annotated[int, Meta(ge=1)] = 1
    max_batch: Annotated[int, Meta(ge=1, le=1024)] = 1  # so many waiting queries may run as one, where a policy batches
    arrivals: Literal["poisson", "even", "file"] = "poisson"
    file: str | None = None  # with `arrivals = "file"`: a time in seconds a line, ascending; `#` begins a comment

    def __post_init__(self) -> None:
        if not self.model:
            msgspec.structs.force_setattr(self, "model", self.name)

    @property
    def target_ns(self) -> int:
        return max(1, round(self.target_ms * 1e6))


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tenants: Annotated[tuple[TenantLoad, ...], Meta(min_length=1)]
    load: Load = Load()

    @property
    def qps(self) -> float:
        """Of all tenants together."""
        return sum(tenant.qps for tenant in self.tenants)


def read_scenario(path: Path) -> Scenario:
    """Paths in it count from its folder. Raises ConfigError, one line that names the file and the key."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: expected a TOML file in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    try:
        scenario = msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_key_first(str(error))}") from None
    _check(scenario, path)
    tenants = (
        msgspec.structs.replace(
            tenant,
            model=_model(tenant, path),
            file=None if tenant.file is None else str(path.parent / tenant.file),
        )
        for tenant in scenario.tenants
    )
    return Scenario(tuple(tenants), scenario.load)


def _model(tenant: TenantLoad, path: Path) -> str:
    """Absolute where it is a folder: what has no "/" is a model of the zoo."""
    return str((path.parent / tenant.model).absolute()) if "/" in tenant.model else tenant.model


def _key_first(text: str) -> str:
    match = re.fullmatch(r"(.*?) - at `\$\.?(.*)`", text, re.DOTALL)
    message, key = match.groups() if match else (text, "")
    return f"{key}: {message[0].lower()}{message[1:]}" if key else message


def _check(scenario: Scenario, path: Path) -> None:
    """What no single field can say."""
    load, names = scenario.load, set()
    if load.queries is not None and load.duration_s is not None:
        raise ConfigError(f"{path}: load: expected queries or duration_s, not both")
    for i, tenant in enumerate(scenario.tenants):
        if tenant.name in names:
            raise ConfigError(f"{path}: tenants[{i}].name: {tenant.name!r} stands twice")
        names.add(tenant.name)
        if (tenant.arrivals == "file") is (tenant.file is None):
            raise ConfigError(f'{path}: tenants[{i}]: expected file exactly where arrivals = "file"')
