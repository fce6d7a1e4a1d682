"""`TraceContext`: by whose trace a query is traced, as a W3C `traceparent` says it.

`server/wire/traces.c` reads it the same way for what I/O threads answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

_TRACE, _PARENT = "(?!0{32})([0-9a-f]{32})", "(?!0{16})([0-9a-f]{16})"
_TRACEPARENT = re.compile(f"(?!ff)([0-9a-f]{{2}})-{_TRACE}-{_PARENT}-([0-9a-f]{{2}})(-.*)?", re.DOTALL)
_SAMPLED = 1
_KEY = "[a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13}"
_VALUE = r"[ -+\--<>-~]{0,255}[!-+\--<>-~]"
_MEMBER = re.compile(f"({_KEY})={_VALUE}")
MOST_STATE, MOST_MEMBERS = 512, 32

Protocol = Literal["grpc", "http"]


class TraceContext(NamedTuple):
    """The trace that a query belongs to.

    >>> TraceContext("http").trace_id
    0
    """

    protocol: Protocol
    trace_id: int = 0  # 0: it begins a trace of its own
    parent_id: int = 0
    state: str = ""  # tracestate: what the caller's system says to itself


class Parent(NamedTuple):
    """What a valid traceparent says: `Parent(trace_id=1, parent_id=2, sampled=True)`."""

    trace_id: int
    parent_id: int
    sampled: bool


def read_traceparent(values: Sequence[str]) -> Parent | None:
    """The only valid one; None for none, for several, and for one that is not valid (Trace Context, section 3.2).

    >>> read_traceparent(["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]).sampled
    True
    >>> read_traceparent(["00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"]) is None
    True
    """
    if len(values) != 1 or (found := _TRACEPARENT.fullmatch(values[0].strip(" \t"))) is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if more is not None and version == "00":
        return None
    return Parent(int(trace, 16), int(parent, 16), bool(int(flags, 16) & _SAMPLED))


def read_tracestate(values: Sequence[str]) -> str:
    """The list that all values make; nothing where it is not valid, or longer than 512 bytes (Trace Context, section
    3.3).

    >>> read_tracestate(["rojo=00f067aa0ba902b7", "congo=t61rcWkgMzE"])
    'rojo=00f067aa0ba902b7,congo=t61rcWkgMzE'
    >>> read_tracestate(["no value"])
    ''
    """
    members = [member for value in values for each in value.split(",") if (member := each.strip(" \t"))]
    state, found = ",".join(members), [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in found if match is not None}
    return state if len(keys) == len(members) <= MOST_MEMBERS and len(state) <= MOST_STATE else ""
