"""`ServedModels`: the models that queries may be for, as scheduler and counters have them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from veltair.profiles.artifact.artifact_folder import CheckedArtifact
from veltair.profiles.artifact.dynamic_dimension import split_bucket
from veltair.scheduler.costs.profile_costs import ProfileCosts
from veltair.scheduler.event_log.header import digest_profiles
from veltair.scheduler.events import Event, TenantAdded, TenantRemoved
from veltair.scheduler.scheduler import Scheduler
from veltair.server.engine.arrivals import Arrivals
from veltair.server.engine.in_flight_queries import InFlightQueries
from veltair.server.engine.models.tenants import added_tenants
from veltair.server.ipc.messages import TenantSpec
from veltair.types import Tenant

ModelTable: TypeAlias = tuple[str, ProfileCosts]  # a model's name for the scheduler, and its costs at one batch


class PreparedModel:
    """A model that is to be added.

    ::

        prepared = served.prepare(spec, artifact)
        while not prepared.make_some():
            …  # something else
        served.add(prepared)
    """

    def __init__(
        self, spec: TenantSpec, tenants: Sequence[Tenant], profiles: Sequence[str], tables: Iterator[ModelTable]
    ) -> None:
        """`tenants`: one for each bucket. `profiles`: their digests. `tables`: what the scheduler learns of them, not
        made yet."""
        self.spec, self.tenants, self.profiles = spec, tenants, profiles
        self.tables: dict[str, list[ProfileCosts]] = {}  # by model
        self._left = tables

    def make_some(self) -> bool:
        """Make one more table: the engine has other things to do besides. Returns whether all are made."""
        if (found := next(self._left, None)) is not None:
            model, table = found
            self.tables.setdefault(model, []).append(table)
        return found is None


class ServedModels:
    """Adds and removes models, each when no query of it is there.

    ::

        served.add(prepared)
        served.is_idle(spec.number)  # True
        served.remove(spec.number)
    """

    def __init__(
        self,
        specs: dict[int, TenantSpec],
        scheduler: Scheduler,
        arrivals: Arrivals,
        queries: InFlightQueries,
        decide: Callable[[Event], None],
    ) -> None:
        """`specs`: by number, kept up to date for all who read them. `decide`: has the scheduler handle an event."""
        self.specs = specs
        self._scheduler, self._decide = scheduler, decide
        self._arrivals, self._queries = arrivals, queries

    def is_idle(self, number: int) -> bool:
        """Whether no query of it is left."""
        return not self._arrivals.waiting(number) and not self._queries.has_any_of(number)

    def prepare(self, spec: TenantSpec, artifact: CheckedArtifact) -> PreparedModel:
        """What the scheduler needs of a model, to be made bit by bit. Raises ProfileError."""
        costs, buckets = self._scheduler.state.costs, artifact.buckets()
        known = {model: by_batch[0].profile.digest for model, by_batch in costs.items()}
        tenants = added_tenants(spec, artifact, known)
        profiles = [bucket.profiles() for bucket in buckets]
        prepared = [
            (tenant.model, self._scheduler.prepare_model(tenant.model, by_batch))
            for tenant, by_batch in zip(tenants, profiles, strict=True)
            if tenant.model not in costs
        ]
        tables = ((model, table) for model, made in prepared for table in made)
        return PreparedModel(spec, tenants, [digest_profiles(by_batch) for by_batch in profiles], tables)

    def add(self, prepared: PreparedModel) -> None:
        """Queries of it may come. Raises ConfigError, and adds nothing then."""
        spec, known = prepared.spec, self._scheduler.state.costs
        for model, tables in prepared.tables.items():
            if model not in known:
                self._scheduler.learn_model(model, tables)
        self.specs[spec.number] = spec
        self._queries.count(spec)
        for tenant, profiles in zip(prepared.tenants, prepared.profiles, strict=True):
            self._decide(TenantAdded(time.monotonic_ns(), tenant, spec.artifact, profiles))

    def remove(self, number: int) -> None:
        """No more queries of it come."""
        spec = self.specs.pop(number)
        for tenant in [name for name in self._scheduler.state.tenants if split_bucket(name)[0] == spec.key]:
            self._decide(TenantRemoved(time.monotonic_ns(), tenant))
