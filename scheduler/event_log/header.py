"""The first line of an event log: all that is needed to replay it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np

from veltair.errors import ConfigError, ProfileError
from veltair.scheduler.costs.profile_catalogue import ProfileCatalogue
from veltair.scheduler.event_log.records import dump_record, load_record
from veltair.scheduler.interference import PROXIES, InterferenceProxy
from veltair.scheduler.policies.by_name import POLICIES
from veltair.scheduler.running_block import BlockGrowth
from veltair.scheduler.scheduler import Scheduler
from veltair.types import Machine, ModelProfile, Record, Tenant

VERSION = 3


class InterferenceSettings(Record, frozen=True):
    """A source of the interference level, by name and with its arguments.

    >>> InterferenceSettings("observed", {"weight": 0.5}).make_proxy().level
    1.0
    """

    source: str
    settings: dict[str, float]

    def make_proxy(self) -> InterferenceProxy:
        """Raises ConfigError for a source or settings that there are not."""
        if self.source not in PROXIES:
            raise ConfigError(f"interference source {self.source!r}: expected one of {', '.join(PROXIES)}")
        try:
            return PROXIES[self.source](**self.settings)
        except TypeError as error:
            raise ConfigError(f"interference source {self.source!r}: {error}") from None


class SchedulerSettings(Record, frozen=True):
    """What a scheduler is made of, without the profiles.

    A recorder makes its scheduler with `make_scheduler`, too, so that the header always matches it.

    >>> settings = SchedulerSettings("fcfs", Machine(((0, 1),)), 2, 1.0, (), InterferenceSettings("observed", {}))
    >>> settings.make_scheduler({}).stats().workers
    2
    """

    policy: str
    machine: Machine
    workers: int  # at the beginning
    planned_share: float
    tenants: tuple[Tenant, ...]
    interference: InterferenceSettings

    def make_scheduler(
        self, profiles: Mapping[str, Sequence[ModelProfile]] | ProfileCatalogue, growth: BlockGrowth | None = None
    ) -> Scheduler:
        """A new scheduler; see there for the arguments and errors."""
        return Scheduler(
            self.machine,
            self.tenants,
            profiles,
            self.policy,
            self.workers,
            proxy=self.interference.make_proxy(),
            planned_share=self.planned_share,
            growth=growth,
        )


class LogHeader(Record, frozen=True):
    """The header of a log; `make_header` makes one.

    `origin` is the recorder's: its "kind" and where the profiles come from. `daemon`: the artifact's folder of each
    model. `simulation`: the machine model, the cores in use and the scenario.

    >>> settings = SchedulerSettings("fcfs", Machine(((0, 1),)), 2, 1.0, (), InterferenceSettings("observed", {}))
    >>> LogHeader(VERSION, settings, profiles={}, origin={"kind": "daemon"}).origin["kind"]
    'daemon'
    """

    version: int
    scheduler: SchedulerSettings
    profiles: dict[str, str]  # digests by model
    origin: dict[str, Any]

    def check_profiles(self, profiles: Mapping[str, Sequence[ModelProfile]]) -> None:
        """Raises ProfileError if a model's profiles are missing or differ from those of the recording."""
        for model, digest in self.profiles.items():
            if model not in profiles:
                raise ProfileError(f"{model}: the log needs its profile, which is missing")
            check_digest(model, profiles[model], digest)


def make_header(
    scheduler: SchedulerSettings, profiles: Mapping[str, Sequence[ModelProfile]], origin: dict[str, Any]
) -> LogHeader:
    """`profiles`: by model, as the scheduler has them."""
    digests = {model: digest_profiles(by_batch) for model, by_batch in profiles.items()}
    return LogHeader(VERSION, scheduler, digests, origin)


def dump_header(header: LogHeader) -> str:
    """One line, without its end."""
    return dump_record(header)


def load_header(line: str) -> LogHeader:
    """Raises ConfigError for a line that is no header, or one of another format or with an unknown policy."""
    header: LogHeader = load_record(line, {LogHeader.__name__: LogHeader})
    if header.version != VERSION:
        raise ConfigError(f"scheduler log: expected format version {VERSION}, got {header.version}")
    if header.scheduler.policy not in POLICIES:
        raise ConfigError(
            f"scheduler log: unknown policy {header.scheduler.policy!r}: expected one of {', '.join(sorted(POLICIES))}"
        )
    return header


def check_digest(model: str, profiles: Sequence[ModelProfile], digest: str) -> None:
    """Raises ProfileError for profiles that are not those of the recording."""
    if (found := digest_profiles(profiles)) != digest:
        raise ProfileError(
            f"{model}: the log was recorded with another profile (digest {digest[:12]}, found {found[:12]})"
        )


def digest_profiles(profiles: Sequence[ModelProfile]) -> str:
    """SHA-256 of all numbers that decisions depend on, of one model's profiles."""
    digest = sha256()
    for profile in profiles:
        digest.update(f"{profile.batch} {len(profile.layers)};".encode())
        for layer, versions in zip(profile.layers, profile.versions, strict=True):
            digest.update(f"{layer.flops} {layer.bytes} {len(versions)};".encode())
            for version in versions:
                digest.update(repr(version.latency.levels).encode())
                digest.update(np.asarray(version.latency.latency_ns, np.int64).tobytes())
    return digest.hexdigest()
