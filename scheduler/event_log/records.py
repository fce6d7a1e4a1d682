"""The records of an event log as JSON lines: an event, then its decisions; each an object tagged with its "type"."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from veltair.errors import ConfigError
from veltair.scheduler.events import Decision, Event
from veltair.types import Record

_T = TypeVar("_T")


def _by_tag(union: UnionType) -> dict[str, type[Any]]:
    return {kind.__name__: kind for kind in get_args(union)}


EVENTS = _by_tag(Event)
DECISIONS = _by_tag(Decision)


def dump_event(event: Event) -> str:
    """One line, without its end."""
    return dump_record(event)


def load_event(line: str) -> Event:
    """Raises ConfigError for anything that `dump_event` does not write."""
    event: Event = load_record(line, EVENTS)
    return event


def dump_decision(decision: Decision) -> str:
    """One line, without its end."""
    return dump_record(decision)


def load_decision(line: str) -> Decision:
    """Raises ConfigError for anything that `dump_decision` does not write."""
    decision: Decision = load_record(line, DECISIONS)
    return decision


def dump_record(record: Record) -> str:
    """A tagged JSON object in one line."""
    return json.dumps({"type": type(record).__name__, **_plain(record)}, separators=(",", ":"))


def load_record(line: str, kinds: dict[str, type[_T]]) -> _T:
    """The inverse of `dump_record`. `kinds`: the types that may come, by tag. Raises ConfigError."""
    record = _parse(line)
    tag = record.pop("type", None)
    if not isinstance(tag, str) or tag not in kinds:
        raise ConfigError(f'scheduler log: expected "type" to be one of {", ".join(kinds)}, got {tag!r}')
    loaded: _T = _typed(record, kinds[tag], tag)
    return loaded


def read_tag(line: str) -> object:
    """The "type" of a line, whatever it is. Raises ConfigError for a line that is no JSON object."""
    return _parse(line).get("type")


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple) and value and isinstance(value[0], Record) | is_dataclass(value[0]):
        return [_plain(item) for item in value]
    return value  # numbers, strings, tuples of them, and JSON objects


def _parse(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"scheduler log: expected a JSON object, got {line[:80]!r}") from error
    if not isinstance(record, dict):
        raise ConfigError(f"scheduler log: expected a JSON object, got {line[:80]!r}")
    return record


def _typed(value: Any, kind: Any, where: str) -> Any:
    if isinstance(kind, type) and (issubclass(kind, Record) or is_dataclass(kind)):
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
    elif get_origin(kind) is dict:
        if isinstance(value, dict):
            of_value = get_args(kind)[1]
            return {name: _typed(item, of_value, f"{where}.{name}") for name, item in value.items()}
    elif isinstance(kind, type) and issubclass(kind, StrEnum):
        if value in list(kind):
            return kind(value)
    elif kind is Any or type(value) is kind:
        return value
    raise ConfigError(f"scheduler log: {where}: expected {kind}, got {value!r}")
