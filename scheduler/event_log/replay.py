"""The log of a scheduler: JSON lines, an event followed by its decisions; each a dict tagged with its "type".

Replayed through a fresh scheduler of the same set-up, the events give the identical decisions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from veltair.errors import ConfigError, InvariantError
from veltair.scheduler.events import Decision, Event
from veltair.scheduler.scheduler import Scheduler
from veltair.types import Record

_T = TypeVar("_T")


def _by_tag(union: UnionType) -> dict[str, type[Any]]:
    return {kind.__name__: kind for kind in get_args(union)}


_EVENTS = _by_tag(Event)
_DECISIONS = _by_tag(Decision)


def dump_event(event: Event) -> str:
    return _dump(event)


def load_event(line: str) -> Event:
    """Raises ConfigError for anything that `dump_event` does not write."""
    event: Event = _load(line, _EVENTS)
    return event


def dump_decision(decision: Decision) -> str:
    return _dump(decision)


def load_decision(line: str) -> Decision:
    """Raises ConfigError for anything that `dump_decision` does not write."""
    decision: Decision = _load(line, _DECISIONS)
    return decision


def replay(scheduler: Scheduler, log: Iterable[str]) -> int:
    """Feeds a log's events to a fresh scheduler and returns how many they were.

    Raises ConfigError for a line that is no record, InvariantError where a decision differs from the recorded one.
    """
    events = 0
    due: list[Decision] = []  # decided, not yet met in the log
    number = 0
    for number, line in enumerate(log, 1):
        tag = _tag(line)
        if tag in _EVENTS:
            if due:
                raise InvariantError(f"log line {number}: expected {due[0]}, the log has an event")
            due = scheduler.handle(load_event(line))
            events += 1
        else:
            recorded = load_decision(line)
            if not due or due[0] != recorded:
                raise InvariantError(
                    f"log line {number}: expected {due[0] if due else 'an event'}, the log has {recorded}"
                )
            del due[0]
    if due:
        raise InvariantError(f"after log line {number}: expected {due[0]}, the log ends")
    return events


def _dump(record: Event | Decision) -> str:
    return json.dumps({"type": type(record).__name__, **_plain(record)}, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return value  # numbers, strings, and tuples of them


def _tag(line: str) -> object:
    record = _parse(line)
    return record.get("type")


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"scheduler log: expected a JSON object, got {line[:80]!r}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"scheduler log: expected a JSON object, got {line[:80]!r}")
    return record


def _load(line: str, kinds: dict[str, type[_T]]) -> _T:
    record = _parse(line)
    tag = record.pop("type", None)
    if not isinstance(tag, str) or tag not in kinds:
        raise ConfigError(f'scheduler log: expected "type" to be one of {", ".join(kinds)}, got {tag!r}')
    loaded: _T = _typed(record, kinds[tag], tag)
    return loaded


def _typed(value: Any, kind: Any, where: str) -> Any:
    if isinstance(kind, type) and issubclass(kind, Record):
        hints = get_type_hints(kind)
        if not isinstance(value, dict) or value.keys() != hints.keys():
            raise ConfigError(f"scheduler log: {where}: expected the fields {', '.join(hints)}")
        build: Callable[..., Any] = kind
        return build(**{name: _typed(value[name], hint, f"{where}.{name}") for name, hint in hints.items()})
    if isinstance(kind, UnionType):  # int | None
        if value is None:
            return None
        [kind] = [each for each in get_args(kind) if each is not NoneType]
        return _typed(value, kind, where)
    if get_origin(kind) is tuple:
        if isinstance(value, list):
            return tuple(_typed(item, get_args(kind)[0], where) for item in value)
    elif type(value) is kind:
        return value
    raise ConfigError(f"scheduler log: {where}: expected {kind}, got {value!r}")
