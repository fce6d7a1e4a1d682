"""The engine's record of every event and decision, for `veltair replay`.

The first line is the header: all that is needed to replay the log but the artifacts, which it names. The log of the
engine's life before is kept under the same name with `.previous` added.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from veltair.config import CounterCoefficients
from veltair.errors import ConfigError
from veltair.profiles.artifact.dynamic_dimension import split_bucket
from veltair.scheduler.event_log.header import (
    InterferenceSettings,
    LogHeader,
    SchedulerSettings,
    dump_header,
    make_header,
)
from veltair.scheduler.event_log.records import dump_decision, dump_event
from veltair.scheduler.events import Decision, Event
from veltair.server.ipc.messages import ConfigureEngine
from veltair.types import Machine, ModelProfile, Tenant

logger = logging.getLogger("veltair.engine")

_TRANSIENT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class EventLog:
    """JSON lines, written through a buffer: a killed engine loses the last records.

    ::

        log = EventLog(Path("events.jsonl"), header)
        log.write(event, scheduler.handle(event))
        log.close()
    """

    def __init__(self, path: Path, header: LogHeader) -> None:
        """Raises ConfigError for anything but a file at the path, OSError where nothing can be written."""
        self._path = path
        self._lost = False  # the disk took no more: nothing is written any more, and serving goes on
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise ConfigError(f"server.event_log: {path}: expected a file, or nothing there")
        if path.exists():
            path.rename(f"{path}.previous")
        self._file = path.open("x", encoding="utf-8")
        self._file.write(dump_header(header) + "\n")
        self._file.flush()

    def write(self, event: Event, decisions: Sequence[Decision]) -> None:
        """An event and what the scheduler decided."""
        if self._lost:
            return
        try:
            self._file.write(dump_event(event) + "\n")
            for decision in decisions:
                self._file.write(dump_decision(decision) + "\n")
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Writes what is in the buffer."""
        try:
            self._file.close()
        except OSError as error:
            if not self._lost:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._lost = True
        logger.error("%s: %s; nothing more is logged, and serving goes on", self._path, error.strerror)


def interference_settings(counter_model: CounterCoefficients | None) -> InterferenceSettings:
    """The fitted counter model, or the observed slowdown where there is none."""
    if counter_model is None:
        return InterferenceSettings("observed", {})
    return InterferenceSettings(
        "counters",
        {
            "constant": counter_model.constant,
            "per_miss_rate": counter_model.per_miss_rate,
            "per_access_per_ns": counter_model.per_access_per_ns,
        },
    )


def scheduler_settings(
    configure: ConfigureEngine, machine: Machine, workers: int, tenants: tuple[Tenant, ...], *, counters: bool
) -> SchedulerSettings:
    """What makes the scheduler, here and where the log is replayed. `counters`: whether this machine has them."""
    return SchedulerSettings(
        policy=configure.policy,
        machine=machine,
        workers=workers,
        planned_share=configure.planned_share,
        tenants=tenants,
        interference=interference_settings(configure.counter_model if counters else None),
    )


def open_event_log(
    configure: ConfigureEngine,
    settings: SchedulerSettings,
    tenants: Sequence[Tenant],
    profiles: Mapping[str, Sequence[ModelProfile]],
) -> EventLog | None:
    """The log that the configuration names, or None. `tenants`: those of the configuration, each bucket one.

    Raises ConfigError where nothing can be written, unless the reason may pass: an engine that comes back serves.
    """
    if not configure.event_log:
        return None
    paths = {spec.key: spec.artifact for spec in configure.tenants}
    folders = {tenant.model: paths[split_bucket(tenant.name)[0]] for tenant in tenants}
    header = make_header(settings, profiles, {"kind": "daemon", "artifacts": folders})
    try:
        return EventLog(Path(configure.event_log), header)
    except OSError as error:
        if error.errno not in _TRANSIENT:
            raise ConfigError(f"server.event_log: {error.filename or configure.event_log}: {error.strerror}") from None
        logger.error("%s: %s; nothing is logged, and serving goes on", configure.event_log, error.strerror)
        return None
