"""The engine's record of every event and decision, for `veltair replay`.

The first line is the header: all that is needed to replay the log but the artifacts, which it names. The log of the
engine's life before is kept under the same name with `.previous` added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from veltair.config import CounterCoefficients
from veltair.errors import ConfigError
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
from veltair.types import ModelProfile, Tenant


class EventLog:
    """JSON lines, written through a buffer: a killed engine loses the last records.

    ::

        log = EventLog(Path("events.jsonl"), header)
        log.write(event, scheduler.handle(event))
        log.close()
    """

    def __init__(self, path: Path, header: LogHeader) -> None:
        """Raises ConfigError where nothing can be written."""
        try:
            if path.exists():
                path.rename(f"{path}.previous")
            self._file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"server.event_log: {error.filename}: {error.strerror}") from None
        self._file.write(dump_header(header) + "\n")

    def write(self, event: Event, decisions: Sequence[Decision]) -> None:
        """An event and what the scheduler decided."""
        self._file.write(dump_event(event) + "\n")
        for decision in decisions:
            self._file.write(dump_decision(decision) + "\n")

    def close(self) -> None:
        """Writes what is in the buffer."""
        self._file.close()


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


def open_event_log(
    configure: ConfigureEngine,
    settings: SchedulerSettings,
    tenants: Sequence[Tenant],
    profiles: Mapping[str, Sequence[ModelProfile]],
) -> EventLog | None:
    """The log that the configuration names, or None. `tenants`: one for each of the configuration, in order.

    Raises ConfigError where nothing can be written.
    """
    if not configure.event_log:
        return None
    folders = {tenant.model: spec.artifact for tenant, spec in zip(tenants, configure.tenants, strict=True)}
    header = make_header(settings, profiles, {"kind": "daemon", "artifacts": folders})
    return EventLog(Path(configure.event_log), header)
