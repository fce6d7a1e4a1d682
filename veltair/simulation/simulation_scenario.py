"""The scenario file of `veltair simulate`: the tenants, their rates and their targets."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from veltair.errors import ConfigError
from veltair.schema_errors import with_key_first
from veltair.toml_file import read_toml

MOST_QUERIES = 10_000_000  # of one run, which holds them all in memory

Positive = Annotated[float, Meta(gt=0, le=1e9)]


class WorkloadShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[load]`: how long a run is, and what the scheduler knows and may do.

    >>> WorkloadShape(queries=500).warmup
    0.1
    """

    queries: Annotated[int, Meta(ge=1, le=MOST_QUERIES)] | None = None  # of all tenants together, warm-up included
    duration_s: Positive | None = None  # instead of `queries`: arrivals stop then
    warmup: Annotated[float, Meta(ge=0, lt=1)] = 0.1  # share of the run at its begin that is not counted
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 1
    proxy: Literal["counters", "observed", "demand"] = "observed"  # where the interference level comes from
    workers: Annotated[int, Meta(ge=1)] | None = None  # queries in flight; default: one for each core
    planned_share: Annotated[float, Meta(gt=0, le=1)] = 1.0  # of each target, that policies plan with
    layer_qos: Literal["time", "ops"] = "time"  # by what the paper's policies divide a target among layers
    layers: Literal["operators", "products"] = "operators"  # by themselves, or as VELTAIR counts them
    domain_aware: bool = True  # cores that share an L3 are handed out together, else cores in order of their numbers
    grows_inside_layers: bool = False  # a block that lacks cores gets more at once, else between two of its layers
    conflict_cost: Literal["layer", "growth"] = "layer"  # waking cores inside a layer costs once, or each time


class TenantWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[tenants]]`: one model, how often it is queried, and its target.

    >>> TenantWorkload(name="resnet50", qps=100, target_ms=15.0).model
    'resnet50'
    """

    name: Annotated[str, Meta(min_length=1)]
    model: str = ""  # a model of the zoo, or an artifact's folder; default: the tenant's name
    qps: Positive
    target_ms: Annotated[float, Meta(gt=0, le=3_600_000)]  # arrival to answer
    percentile: Annotated[float, Meta(gt=0, le=1)] = 0.95  # share of the queries that must meet target_ms
    priority: Annotated[int, Meta(ge=1)] = 1
    weight: Annotated[int, Meta(ge=1, le=1_000_000)] = 1  # its part of the cores where all ask for more than there is
    max_batch: Annotated[int, Meta(ge=1, le=1024)] = 1  # waiting queries that a policy may run as one
    arrivals: Literal["poisson", "even", "file"] = "poisson"
    machines: tuple[Annotated[int, Meta(ge=0)], ...] | None = None  # of many, those where it is resident; default: all
    file: str | None = None  # with `arrivals = "file"`: times in seconds, one a line, ascending; `#` begins a comment

    def __post_init__(self) -> None:
        if not self.model:
            msgspec.structs.force_setattr(self, "model", self.name)

    @property
    def target_ns(self) -> int:
        return max(1, round(self.target_ms * 1e6))


class MachineFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[failures]]`: one of many machines dies, and all queries that it holds are lost.

    >>> MachineFailure(machine=3, at_s=1.5).back_s is None
    True
    """

    machine: Annotated[int, Meta(ge=0)]  # from 0
    at_s: Annotated[float, Meta(ge=0, le=1e9)]
    back_s: Annotated[float, Meta(ge=0, le=1e9)] | None = None  # when it serves again, with nothing to do; None: never


class RoutingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[routing]`: how old a router's knowledge of the machines is.

    >>> RoutingSettings(report_period_ms=20.0).report_delay_ms
    5.0
    """

    report_period_ms: Annotated[float, Meta(ge=0.1, le=3_600_000)] = 100.0  # between two reports of one machine
    report_delay_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 5.0  # from a report to when the router has it
    notice_ms: Annotated[float, Meta(ge=0, le=3_600_000)] = 100.0  # from a death to when the router knows of it


class SimulationScenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scenario file.

    >>> tenant = TenantWorkload(name="resnet50", qps=10.0, target_ms=15.0)
    >>> SimulationScenario((tenant,)).qps
    10.0
    """

    tenants: Annotated[tuple[TenantWorkload, ...], Meta(min_length=1)]
    load: WorkloadShape = WorkloadShape()
    failures: tuple[MachineFailure, ...] = ()
    routing: RoutingSettings = RoutingSettings()

    @property
    def qps(self) -> float:
        """The rate of all tenants together."""
        return sum(tenant.qps for tenant in self.tenants)


def read_simulation_scenario(path: Path) -> SimulationScenario:
    """Reads a scenario file; paths in it are relative to its folder.

    Raises ConfigError, one line that names the file and the key.
    """
    document = read_toml(path)
    try:
        scenario = msgspec.convert(document, SimulationScenario)
    except msgspec.ValidationError as error:
        hint = ""
        if "server" in document:
            hint = "; a file with [server] is a configuration of `veltair serve`"
        elif isinstance(load := document.get("load"), dict) and "target" in load:
            hint = "; a scenario with load.target is one of `veltair load`"
        raise ConfigError(f"{path}: {with_key_first(str(error), SimulationScenario)}{hint}") from None
    _check(scenario, path)
    tenants = (
        msgspec.structs.replace(
            tenant,
            model=_model(tenant, path),
            file=None if tenant.file is None else str(path.parent / tenant.file),
        )
        for tenant in scenario.tenants
    )
    return msgspec.structs.replace(scenario, tenants=tuple(tenants))


def _model(tenant: TenantWorkload, path: Path) -> str:
    """Returns the absolute path of an artifact, or a name without "/" of a model of the zoo."""
    return str((path.parent / tenant.model).absolute()) if "/" in tenant.model else tenant.model


def _check(scenario: SimulationScenario, path: Path) -> None:
    """Checks what no single field can say."""
    load, names = scenario.load, set()
    if load.queries is not None and load.duration_s is not None:
        raise ConfigError(f"{path}: load: expected queries or duration_s, not both")
    for i, tenant in enumerate(scenario.tenants):
        if tenant.name in names:
            raise ConfigError(f"{path}: tenants[{i}].name: {tenant.name!r} appears twice")
        names.add(tenant.name)
        if (tenant.arrivals == "file") is (tenant.file is None):
            raise ConfigError(f'{path}: tenants[{i}]: expected file exactly where arrivals = "file"')
    down_until: dict[int, float] = {}
    for i, failure in sorted(enumerate(scenario.failures), key=lambda each: (each[1].machine, each[1].at_s)):
        if failure.back_s is not None and failure.back_s <= failure.at_s:
            raise ConfigError(f"{path}: failures[{i}].back_s: expected a time after at_s = {failure.at_s:g}")
        if failure.at_s < down_until.get(failure.machine, 0.0):
            raise ConfigError(f"{path}: failures[{i}]: machine {failure.machine} is dead at {failure.at_s:g} s already")
        down_until[failure.machine] = inf if failure.back_s is None else failure.back_s
