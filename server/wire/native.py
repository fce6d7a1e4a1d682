"""The functions of `wire.c`, and the records that cross between it and Python."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from veltair.machine.native_library import native_library
from veltair.server.ipc.stages import ENDED_REQUEST

_POINTER, _SIZE, _U64, _I32 = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32

# An ended query as `RequestCounts.count_batch` takes it, its tenant, and what only C reads.
ENDED = np.dtype([*ENDED_REQUEST.descr, ("tenant", "i4"), ("socket", "i4"), ("unused", "i4")])
ENDED_ID = np.dtype([("size", "u1"), ("text", "V127")])  # what its client gave as its id
ENDED_TRACE = np.dtype(  # a traced one; wire.h
    [
        *(("ended", ENDED), ("id", ENDED_ID), ("trace", "V16"), ("parent", "V8"), ("query", "u8"), ("sampled", "u1")),
        *(("unused", "V3"), ("state_number", "u4"), ("protocol", "i4"), ("state_bytes", "u4"), ("state", "V512")),
    ]
)
SHARE = np.dtype([("rate", "f8"), ("burst", "f8"), ("kept", "i4"), ("most", "i4")])  # slots.h
RATE_SPENT = -2
INPUT = np.dtype(
    [
        ("bytes", "u8"),
        ("offset", "u8"),
        ("element", "i4"),
        ("file", "i4"),
        ("file_offset", "i8"),
        ("low", "i8"),
        ("high", "i8"),
        ("text_offset", "u8"),
        ("text_bytes", "u8"),
        ("sent_bytes", "u8"),
    ]
)
OUTPUT = np.dtype(
    [("bytes", "u8"), ("offset", "u8"), ("file_offset", "i8"), ("file", "i4"), ("unused", "i4"), ("error", "S160")]
)
_ELEMENTS = ("", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "strings")  # by numpy's names; "": of any range
ELEMENTS = {name: code for code, name in enumerate(_ELEMENTS)}

# What a listener speaks.
GRPC, HTTP, ADMIN = range(3)

# Kinds of events, and of commands.
COUNTS, IDLE, FAILED, OPEN, MESSAGE, END, ABORTED, FLUSHED = range(8)
SEND_HEADERS, SEND_DATA, TELL_FLUSHED, TAKEN, RESET = range(5)


class CallEvent(ctypes.Structure):
    """What happened to a call that Python handles."""

    _fields_ = (
        ("next", _POINTER),
        ("call", _U64),
        ("code", ctypes.c_int64),
        ("data", _POINTER),
        ("size", _SIZE),
        ("kind", _I32),
    )


class Status(ctypes.Structure):
    """What an error is over each protocol."""

    _fields_ = (("grpc", _I32), ("http", _I32))


class Refusal(ctypes.Structure):
    """A status with its text."""

    _fields_ = (("status", Status), ("text", ctypes.c_char_p))


class Limits(ctypes.Structure):
    """What clients may use up: `config.LimitsConfig`."""

    _fields_ = (
        *((name, _U64) for name in ("memory", "connection_memory")),
        *((name, ctypes.c_int64) for name in ("head_ns", "body_ns", "idle_ns", "unread_ns")),
        *((name, ctypes.c_uint32) for name in ("connections", "address_connections", "streams", "header_bytes")),
        *((name, ctypes.c_uint32) for name in ("python_requests", "unused")),
    )


class Settings(ctypes.Structure):
    """What `wire_start` gets."""

    _fields_ = (
        ("threads", _I32),
        ("home", _I32),
        ("outcome_status", Status * 5),
        ("max_message_bytes", _SIZE),
        ("max_body_bytes", _SIZE),
        ("limits", Limits),
        ("refusals", ctypes.POINTER(Refusal)),
        ("refusal_count", _I32),
        ("infer_path", ctypes.c_char_p),
        ("tenant_header", ctypes.c_char_p),
        ("hosts", ctypes.c_char_p),
        ("head", ctypes.c_char_p),
        ("trailers", ctypes.c_char_p),
        ("head_bytes", _SIZE),
        ("trailers_bytes", _SIZE),
        ("uvicorn_secret", ctypes.c_char_p),
    )


class Requester(ctypes.Structure):
    """What the transport says of a request besides its head."""

    _fields_ = (
        ("tenant", ctypes.c_char_p),
        ("tenant_bytes", _SIZE),
        ("caller", ctypes.c_char_p),
        ("caller_bytes", _SIZE),
    )


class PlanValues(ctypes.Structure):
    """A plan as `plan_new` reads it; the fields that are unnamed here are its own."""

    _fields_ = (
        ("references", ctypes.c_int),
        ("hash", _U64),
        ("next", _POINTER),
        ("tenant", _I32),
        ("batch", _I32),
        ("priority_level", _I32),
        ("unused", _I32),
        ("timeout_ns", ctypes.c_int64),
        ("inputs", ctypes.c_uint32),
        ("outputs", ctypes.c_uint32),
        ("input", _POINTER),
        ("output", _POINTER),
        ("key_bytes", _SIZE),
        ("tenant_bytes", _SIZE),
        ("caller_bytes", _SIZE),
        ("begin_bytes", _SIZE),
        ("rest_bytes", _SIZE),
        ("key", _POINTER),
        ("begin", ctypes.c_char_p),
        ("rest", ctypes.c_char_p),
    )


_FUNCTIONS: dict[str, tuple[Any, ...]] = {  # result, arguments
    "wire_start": (_POINTER, _POINTER),
    "wire_stop": (None, _POINTER),
    "wire_events_fd": (ctypes.c_int, _POINTER),
    "wire_wake_fd": (ctypes.c_int, _POINTER, ctypes.c_int),
    "wire_next_query": (_U64, _POINTER),
    "wire_listen": (None, _POINTER, ctypes.c_int, ctypes.c_int),
    "wire_forward_to": (ctypes.c_int, _POINTER, ctypes.c_char_p, _SIZE),
    "wire_use_tls": (ctypes.c_int, _POINTER, *[ctypes.c_char_p] * 4),
    "wire_open": (None, _POINTER, ctypes.c_int),
    "wire_link": (_POINTER, *[_POINTER] * 2, _U64, *[_POINTER] * 3, ctypes.c_int, _I32, _I32),
    "wire_open_tenant": (None, _POINTER, _I32, _POINTER, _U64, _POINTER),
    "wire_close_tenant": (None, _POINTER, _I32),
    "wire_keep_slots": (None, _POINTER, _POINTER),
    "wire_slots_held": (_I32, _POINTER, _I32),
    "wire_unlink": (None, _POINTER),
    "wire_lane_bytes": (_SIZE, _U64),
    "wire_use": (None, _POINTER, _POINTER, ctypes.c_char_p, ctypes.c_int),
    "wire_take_slot": (_I32, _POINTER, _I32, ctypes.c_int64),
    "wire_give_back_slot": (None, _POINTER, _I32, _I32),
    "wire_slots_taken": (_I32, _POINTER),
    "wire_add_grpc_plan": (ctypes.c_int, _POINTER, _POINTER, _SIZE, _POINTER, _POINTER),
    "wire_add_http_plan": (ctypes.c_int, _POINTER, *[ctypes.c_char_p, _SIZE] * 2, *[_POINTER] * 2),
    "wire_name_callers": (None, _POINTER, ctypes.c_int),
    "wire_id_bytes": (_SIZE, ctypes.c_char_p, _SIZE),
    "wire_clear_plans": (None, _POINTER),
    "wire_clear_plans_of": (None, _POINTER, _I32),
    "wire_keep_ids": (None, _POINTER),
    "wire_trace": (None, _POINTER, _U64),
    "wire_take_traces": (ctypes.c_uint32, _POINTER, ctypes.c_int, _POINTER, ctypes.c_uint32, _POINTER),
    "wire_take_counts": (ctypes.c_uint32, _POINTER, ctypes.c_int, *[_POINTER] * 2, ctypes.c_uint32),
    "wire_budget_counts": (None, _POINTER, _POINTER),
    "wire_refusal_counts": (None, _POINTER, _POINTER, ctypes.c_uint32),
    "wire_next_event": (ctypes.POINTER(CallEvent), _POINTER),
    "wire_free_event": (None, ctypes.POINTER(CallEvent)),
    "wire_command": (ctypes.c_int, _POINTER, _U64, ctypes.c_int, ctypes.c_int, _POINTER, _SIZE),
    "wire_leave": (None, _POINTER),
    "wire_idle": (ctypes.c_int, _POINTER),
}


def data_of(event: CallEvent) -> bytes:
    """A copy of what came with it."""
    return ctypes.string_at(event.data, event.size) if event.size else b""


def unpack_failure(data: bytes) -> tuple[str, str]:
    r"""The request's id, and why its query failed.

    >>> unpack_failure(b"\x02\0\0\0" + b"a7" + b"no memory")
    ('a7', 'no memory')
    """
    behind = 4 + int.from_bytes(data[:4], "little")
    return data[4:behind].decode(errors="replace"), data[behind:].decode(errors="replace")


@cache
def library() -> ctypes.CDLL:
    """The functions of `wire.c`, which run without the interpreter lock.

    Raises VeltairError where they were not built.
    """
    loaded = native_library("veltair.server.wire._wire")
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, tuple(arguments)
    return loaded
