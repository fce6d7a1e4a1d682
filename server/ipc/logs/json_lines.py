"""Logs as lines of JSON, of every process of the daemon that logs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

LOG_FORMAT = "VELTAIR_LOG_FORMAT"  # the environment variable by which the front tells its children


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, process, message; `event` and others where the call gave them as `extra`.

    >>> record = logging.LogRecord("veltair.server", logging.INFO, "", 0, "%d queries", (3,), None)
    >>> record.created, record.process = 0.0, 7
    >>> print(JsonLines().format(record))
    {"time":"1970-01-01T00:00:00.000Z","level":"INFO","logger":"veltair.server","pid":7,"message":"3 queries"}
    """

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": utc(record.created),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": _in_utf8(record.getMessage()),
        }
        extra = getattr(record, "fields", None)
        if isinstance(extra, Mapping):
            fields |= extra
        if record.exc_info:
            fields["exception"] = _in_utf8(self.formatException(record.exc_info))
        return msgspec.json.encode(fields).decode()


def event(kind: str, **fields: Any) -> dict[str, Any]:
    """The argument `extra` of a call that logs something for which an operator may want to search.

    >>> event("ready", tenants=2)
    {'fields': {'event': 'ready', 'tenants': 2}}
    """
    return {"fields": {"event": kind, **fields}}


def log_line(logger: str, kind: str, **fields: Any) -> str:
    """A line like those of the log, for another stream; `kind` is its event and its message.

    >>> msgspec.json.decode(log_line("veltair.server", "listening", ready=True))["ready"]
    True
    """
    record = logging.LogRecord(logger, logging.INFO, "", 0, kind, (), None)
    record.fields = event(kind, **fields)["fields"]
    return JsonLines().format(record)


def utc(seconds: float) -> str:
    """Seconds since 1970, as ISO 8601 with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _in_utf8(text: str) -> str:
    r"""Paths need not be UTF-8, JSON is.

    >>> _in_utf8("/models/\udcff")
    '/models/\\udcff'
    """
    return text.encode("utf-8", "backslashreplace").decode()
