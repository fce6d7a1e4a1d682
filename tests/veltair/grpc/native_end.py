"""The connection in C behind the interface of http2_ends.py, and the header compression in C, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, byref, c_bool, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_void_p
from typing import Any

from http2_ends import Call, End, Reaction

from veltair.grpc.http2 import frames, hpack
from veltair.machine.native_library import native_library


class _Field(ctypes.Structure):
    _fields_ = (("name", c_void_p), ("value", c_void_p), ("name_size", c_uint32), ("value_size", c_uint32))


_CALLBACKS: dict[str, Any] = {
    "headers": CFUNCTYPE(None, c_void_p, c_void_p, POINTER(_Field), c_int),
    "room": CFUNCTYPE(c_bool, c_void_p, c_void_p, c_size_t),
    "begun": CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t),
    "message": CFUNCTYPE(None, c_void_p, c_void_p, c_void_p, c_size_t, c_bool),
    "too_large": CFUNCTYPE(None, c_void_p, c_void_p, c_size_t),
    "end": CFUNCTYPE(None, c_void_p, c_void_p),
    "aborted": CFUNCTYPE(None, c_void_p, c_void_p, c_int64),
    "flushed": CFUNCTYPE(None, c_void_p, c_void_p),
    "closed": CFUNCTYPE(None, c_void_p, c_void_p),
    "ready": CFUNCTYPE(None, c_void_p),
    "long_head": CFUNCTYPE(None, c_void_p, c_void_p),
    "no_memory": CFUNCTYPE(None, c_void_p, c_void_p),
}


class _Limits(ctypes.Structure):
    _fields_ = (("message_bytes", ctypes.c_uint64), ("streams", c_uint32), ("header_bytes", c_uint32))


class _Handler(ctypes.Structure):
    _fields_ = tuple(_CALLBACKS.items())


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "hpack_new": (c_void_p, ()),
    "hpack_free": (None, (c_void_p,)),
    "hpack_decode": (c_int, (c_void_p, c_char_p, c_size_t, c_uint32, POINTER(POINTER(_Field)))),
    "hpack_encode": (c_size_t, (c_char_p, POINTER(_Field))),
    "h2_new": (c_void_p, (c_bool, POINTER(_Limits), POINTER(_Handler), c_void_p)),
    "h2_free": (None, (c_void_p,)),
    "h2_target": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "h2_filled": (None, (c_void_p, c_size_t)),
    "h2_output": (c_void_p, (c_void_p, POINTER(c_size_t))),
    "h2_sent": (None, (c_void_p, c_size_t)),
    "h2_failed": (c_bool, (c_void_p,)),
    "h2_leaving": (c_bool, (c_void_p,)),
    "h2_leave": (None, (c_void_p,)),
    "h2_calm": (None, (c_void_p, c_int)),
    "h2_streams": (c_size_t, (c_void_p,)),
    "h2_max_streams": (c_uint32, (c_void_p,)),
    "h2_open": (c_void_p, (c_void_p,)),
    "h2_headers": (None, (c_void_p, c_char_p, c_size_t, c_bool)),
    "h2_data": (None, (c_void_p, c_char_p, c_size_t, c_bool)),
    "h2_kept_data": (None, (c_void_p, c_void_p, c_size_t, c_bool)),
    "h2_output_pieces": (c_int, (c_void_p, c_void_p, c_int)),
    "h2_reset": (None, (c_void_p, c_uint32)),
    "h2_hold": (None, (c_void_p, c_bool)),
    "h2_want": (None, (c_void_p,)),
    "h2_remote_open": (c_bool, (c_void_p,)),
    "h2_number": (c_uint32, (c_void_p,)),
    "h2_set_context": (None, (c_void_p, c_void_p)),
    "h2_context": (c_void_p, (c_void_p,)),
    "h2_free_message": (None, (c_void_p,)),
}


def _load() -> ctypes.CDLL:
    library = native_library("veltair.grpc.native._http2")
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = _load()


def _fields(found: Any, count: int) -> list[hpack.Field]:
    return [
        (
            ctypes.string_at(field.name, field.name_size).decode("latin-1"),
            ctypes.string_at(field.value, field.value_size).decode("latin-1"),
        )
        for field in found[:count]
    ]


class NativeDecoder:
    """`hpack.Decoder`, with errors that have no text."""

    def __init__(self) -> None:
        self._decoder = library.hpack_new()

    def __del__(self) -> None:
        library.hpack_free(self._decoder)

    def decode(self, block: bytes) -> list[hpack.Field]:
        found = POINTER(_Field)()
        count = library.hpack_decode(self._decoder, block, len(block), hpack.MAX_HEADER_LIST_BYTES, byref(found))
        if count < 0:
            raise {-1: hpack.HeaderError, -2: hpack.LongListError, -3: hpack.EndlessListError}[count]
        return _fields(found, count)


def native_encode(fields: Sequence[hpack.Field]) -> bytes:
    """`hpack.encode`."""
    block = b""
    for field in fields:
        name, value = (text.encode("latin-1") for text in field)
        target = ctypes.create_string_buffer(12 + len(name) + len(value))
        addresses = (ctypes.cast(c_char_p(text), c_void_p) for text in (name, value))
        size = library.hpack_encode(target, byref(_Field(*addresses, len(name), len(value))))
        block += target.raw[:size]
    return block


class NativeCall(Call):
    def __init__(self, stream: int) -> None:
        super().__init__()
        self._stream = stream
        self.number: int = library.h2_number(stream)
        self.closed = False

    @property
    def remote_open(self) -> bool:  # type: ignore[override]
        return not self.closed and library.h2_remote_open(self._stream)

    def headers(self, fields: Sequence[hpack.Field], *, end: bool = False) -> None:
        block = hpack.encode(fields)
        if not self.closed:
            library.h2_headers(self._stream, block, len(block), end)

    def data(self, data: bytes, *, end: bool = False) -> None:
        if not self.closed:
            library.h2_data(self._stream, data, len(data), end)

    def reset(self, code: int) -> None:
        if not self.closed:
            library.h2_reset(self._stream, code)

    def hold(self, held: bool) -> None:
        if not self.closed:
            library.h2_hold(self._stream, held)


class NativeEnd(End):
    call_type = NativeCall

    def __init__(self, server: bool, react: Reaction, max_message_bytes: int = 1 << 20) -> None:
        super().__init__(server, react, max_message_bytes)
        # Kept, as C calls them later.
        self._handler = _Handler(*(kind(getattr(self, f"_{name}")) for name, kind in _CALLBACKS.items()))
        limits = _Limits(max_message_bytes, frames.MAX_STREAMS, frames.CONTROL_BYTES)
        self._connection = library.h2_new(server, byref(limits), byref(self._handler), None)

    def __del__(self) -> None:
        self.lose()

    def _call(self, stream: int) -> NativeCall:
        """The call of a stream: its context is the call's place in `calls`, plus one."""
        place = library.h2_context(stream)
        if place is None:
            self.calls.append(self.call_type(stream))
            place = len(self.calls)
            library.h2_set_context(stream, place)
        call = self.calls[place - 1]
        assert isinstance(call, NativeCall) and not call.closed
        return call

    def _room(self, _: object, stream: int, size: int) -> bool:
        return True

    def _begun(self, _: object, stream: int, data: int, size: int) -> None:
        library.h2_want(stream)

    def _add(self, stream: int, *event: Any) -> None:
        call = self._call(stream)
        call.events.append(event)
        self.react(call, event)

    def _headers(self, owner: int, stream: int, fields: Any, count: int) -> None:
        self._add(stream, "headers", _fields(fields, count))

    def _no_memory(self, owner: int, stream: int) -> None:
        self._add(stream, "no_memory")

    def _long_head(self, owner: int, stream: int) -> None:
        self._add(stream, "long_head")

    def _message(self, owner: int, stream: int, data: int, size: int, compressed: bool) -> None:
        message = ctypes.string_at(data, size)
        library.h2_free_message(data)
        self._add(stream, "message", message, compressed)

    def _too_large(self, owner: int, stream: int, size: int) -> None:
        self._add(stream, "too_large", size)

    def _end(self, owner: int, stream: int) -> None:
        self._add(stream, "end")

    def _aborted(self, owner: int, stream: int, code: int) -> None:
        self._add(stream, "aborted", code)

    def _flushed(self, owner: int, stream: int) -> None:
        self._add(stream, "flushed")

    def _closed(self, owner: int, stream: int) -> None:
        call = self._call(stream)
        call.events.append(("closed",))
        call.closed = True

    def _ready(self, owner: int) -> None:
        self.ready += 1

    def receive(self, data: memoryview) -> int:
        room = c_size_t()
        target = library.h2_target(self._connection, byref(room))
        size = min(room.value, len(data))
        ctypes.memmove(target, bytes(data[:size]), size)
        library.h2_filled(self._connection, size)
        return size

    def take(self, most: int = 1 << 30) -> bytes:
        size = c_size_t()
        address = library.h2_output(self._connection, byref(size))
        sent = ctypes.string_at(address, min(size.value, most)) if size.value else b""
        library.h2_sent(self._connection, len(sent))
        return sent

    @property
    def failed(self) -> bool:
        return bool(library.h2_failed(self._connection))

    @property
    def leaving(self) -> bool:
        return bool(library.h2_leaving(self._connection))

    @property
    def streams(self) -> int:
        return int(library.h2_streams(self._connection))

    @property
    def max_streams(self) -> int:
        return int(library.h2_max_streams(self._connection))

    def open(self) -> Call:
        return self._call(library.h2_open(self._connection))

    def leave(self) -> None:
        library.h2_leave(self._connection)

    def calm(self, glitches: int) -> None:
        library.h2_calm(self._connection, glitches)

    def lose(self) -> None:
        if self._connection is not None:
            library.h2_free(self._connection)
            self._connection = None
