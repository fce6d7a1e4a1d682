"""What msgspec says of a file that does not fit its schema, as a user reads it: the key first, and the nearest name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

import msgspec.inspect


def with_key_first(message: str, schema: type, raw: object = None) -> str:
    """msgspec's "<what> - at `$.tenants[0].qos_ms`" as "tenants[0].qos_ms (tenant 'x'): <what>".

    Args:
        schema: the struct of the whole file; an unknown key gets the nearest of its names.
        raw: the file's content, which has the names of tenants.

    >>> class Server(msgspec.Struct, forbid_unknown_fields=True):
    ...     http: str = ""
    >>> with_key_first("Object contains unknown field `htpp` - at `$.server`", Server)
    'server: object contains unknown field `htpp`; did you mean `http`?'
    """
    what, _, where = message.partition(" - at `$")
    place = where.rstrip("`").lstrip(".")
    if match := re.match(r"tenants\[(\d+)\]", place):
        entries = raw.get("tenants") if isinstance(raw, dict) else None
        entry = entries[int(match[1])] if isinstance(entries, list) else None
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            place += f" (tenant {entry['name']!r})"
    text = what[0].lower() + what[1:]
    if unknown := re.search(r"unknown field `([^`]*)`", text):
        kind = msgspec.inspect.type_info(schema)
        # The keys of the table that has it; else one of another table, where it may belong.
        for names in (_keys(_at(kind, where)), set(_names(kind)) - {unknown[1]}):
            if nearest := difflib.get_close_matches(unknown[1], sorted(names), n=1):
                break
        text += f"; did you mean `{nearest[0]}`?" if nearest else ""
    return f"{place}: {text}" if place else text


def _at(kind: msgspec.inspect.Type, where: str) -> list[msgspec.inspect.StructType]:
    """The structs that may stand at a place such as `.tenants[0]`."""
    kinds = _structs(kind)
    for key in re.findall(r"\.(\w+)", where):
        fields = [field for each in kinds for field in each.fields if field.encode_name == key]
        kinds = [found for field in fields for found in _structs(field.type)]
    return kinds


def _structs(kind: msgspec.inspect.Type) -> list[msgspec.inspect.StructType]:
    match kind:
        case msgspec.inspect.StructType():
            return [kind]
        case msgspec.inspect.UnionType(types=types):
            return [found for each in types for found in _structs(each)]
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return _structs(item)
    return []


def _keys(kinds: list[msgspec.inspect.StructType]) -> set[str]:
    return {field.encode_name for kind in kinds for field in kind.fields}


def _names(kind: msgspec.inspect.Type) -> Iterator[str]:
    """The keys of a struct and of all that it holds."""
    for each in _structs(kind):
        for field in each.fields:
            yield field.encode_name
            yield from _names(field.type)
