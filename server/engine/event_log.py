"""A record of every event and decision, for `veltair.scheduler.event_log.replay`.

Beside the log stands `<log>.setup.json`: what the scheduler was made with, apart from the profiles, which the
artifacts hold. The files of the engine's life before are kept under the same names with `.previous` added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from veltair.config import CounterCoefficients
from veltair.errors import ConfigError
from veltair.profiles.artifact.artifact_folder import Artifact
from veltair.scheduler.event_log.replay import dump_decision, dump_event
from veltair.scheduler.events import Decision, Event
from veltair.scheduler.interference import CounterModel
from veltair.scheduler.scheduler import Scheduler
from veltair.server.engine.tenants import tenants_and_profiles
from veltair.server.ipc.messages import TenantSpec
from veltair.types import Machine


class Setup(msgspec.Struct, frozen=True):
    machine: Machine
    tenants: tuple[TenantSpec, ...]
    policy: str
    workers: int
    counter_model: CounterCoefficients | None = None  # None: the level comes from observed slowdown
    planned_share: float = 1.0

    def scheduler(self, artifacts: Sequence[Artifact]) -> Scheduler:
        """A fresh one. `artifacts`: one for each tenant, in order."""
        tenants, profiles = tenants_and_profiles(self.tenants, artifacts)
        fitted = self.counter_model
        proxy = None
        if fitted is not None:
            proxy = CounterModel(fitted.constant, fitted.per_miss_rate, fitted.per_access_per_ns)
        return Scheduler(
            self.machine, tenants, profiles, self.policy, self.workers, proxy=proxy, planned_share=self.planned_share
        )


class EventLog:
    """Written through a buffer: a killed engine loses the last records."""

    def __init__(self, path: Path, setup: Setup) -> None:
        """Raises ConfigError where nothing can be written."""
        beside = setup_path(path)
        try:
            for file in (path, beside):
                if file.exists():
                    file.rename(f"{file}.previous")
            beside.write_bytes(msgspec.json.encode(setup))
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"server.event_log: {error.filename}: {error.strerror}") from None

    def write(self, event: Event, decisions: Sequence[Decision]) -> None:
        self._file.write(dump_event(event) + "\n")
        for decision in decisions:
            self._file.write(dump_decision(decision) + "\n")

    def close(self) -> None:
        self._file.close()


def setup_path(log: Path) -> Path:
    return log.with_name(f"{log.name}.setup.json")


def read_setup(log: Path, artifacts: Mapping[str, Artifact]) -> Scheduler:
    """A scheduler to replay the log with. `artifacts`: by tenant. Raises ConfigError."""
    try:
        setup = msgspec.json.decode(setup_path(log).read_bytes(), type=Setup)
    except OSError as error:
        raise ConfigError(f"{setup_path(log)}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{setup_path(log)}: {error}") from None
    missing = [spec.name for spec in setup.tenants if spec.name not in artifacts]
    if missing:
        raise ConfigError(f"{log}: the log needs the artifacts of {', '.join(missing)}")
    return setup.scheduler([artifacts[spec.name] for spec in setup.tenants])
