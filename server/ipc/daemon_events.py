"""`EventKind`: what happens to a daemon that its operator wants to know; `Report`: how its parts tell of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Literal, TypeAlias

Severity: TypeAlias = Literal["info", "warning", "error"]


class EventKind(StrEnum):
    """A kind of event, from a fixed list: a label for metrics.

    >>> EventKind.WORKER_DIED.value, EventKind.WORKER_DIED.severity
    ('worker_died', 'error')
    """

    STARTED = "started"
    WORKER_DIED = "worker_died"
    ENGINE_DIED = "engine_died"
    ENGINE_HUNG = "engine_hung"
    ENGINE_START_FAILED = "engine_start_failed"
    ENGINE_RESTARTED = "engine_restarted"
    MODEL_LOADED = "model_loaded"
    MODEL_UNLOADED = "model_unloaded"
    MODEL_FAILED = "model_failed"
    RELOADED = "reloaded"
    RELOAD_FAILED = "reload_failed"
    CERTIFICATE_EXPIRES = "certificate_expires"
    CERTIFICATE_INVALID = "certificate_invalid"
    NOT_READY = "not_ready"
    DRAINING = "draining"

    @property
    def severity(self) -> Severity:
        if self in _WARNINGS:
            return "warning"
        return "error" if self in _ERRORS else "info"


_WARNINGS = (EventKind.CERTIFICATE_EXPIRES, EventKind.NOT_READY, EventKind.DRAINING)
_ERRORS = (
    *(EventKind.WORKER_DIED, EventKind.ENGINE_DIED, EventKind.ENGINE_HUNG, EventKind.ENGINE_START_FAILED),
    *(EventKind.MODEL_FAILED, EventKind.RELOAD_FAILED, EventKind.CERTIFICATE_INVALID),
)

# Gets the kind, the model that it is about or "", and what happened in words.
Report: TypeAlias = Callable[[EventKind, str, str], None]


def report_nothing(kind: EventKind, subject: str, text: str) -> None:
    """A `Report` for who keeps no events."""
