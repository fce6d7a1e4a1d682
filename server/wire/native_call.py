"""`NativeCall`: a gRPC call that came in through an I/O thread and is handled by Python; `NativeCalls`: all of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

from veltair.grpc.http2 import frames
from veltair.grpc.http2.hpack import Field
from veltair.grpc.server_call import Decompress, Method, ServerCall
from veltair.server.wire import native
from veltair.server.wire.native import CallEvent

# (call, kind, whether it is the last, data)
SendCommand = Callable[[int, int, bool, bytes | memoryview], None]

_SIZES, _CODE = struct.Struct("=II"), struct.Struct("=I")


class NativeCall(ServerCall):
    """A call whose connection lives in C: what it sends leaves as commands.

    ::

        call = NativeCall(event.call, methods, max_request_bytes, decompress, send_command)
        call.headers_received(unpack_fields(data))
    """

    def __init__(
        self,
        call: int,
        methods: Mapping[str, Method],
        max_request_bytes: int,
        decompress: Decompress,
        send_command: SendCommand,
    ) -> None:
        super().__init__(methods, max_request_bytes, decompress)
        self._call = call
        self._send_command = send_command
        self._waits = False  # until all that it sent has been handed to the connection
        self.connection = self  # type: ignore[assignment]

    @property
    def unsent(self) -> bool:
        return self._waits

    def flush(self, _: object = None) -> None:
        """Hand what is queued to the I/O thread."""
        while self.pending:
            kind, flags, payload = self.pending.popleft()
            last = bool(flags & frames.END_STREAM)
            command = native.SEND_HEADERS if kind == frames.HEADERS else native.SEND_DATA
            if self.streams_responses and not self.pending and not last and not self._waits:
                self._waits = True
                self._send_command(self._call, native.TELL_FLUSHED, False, b"")
            self._send_command(self._call, command, last, payload)
            if last:
                self.close()

    def flushed(self) -> None:
        self._waits = False
        super().flushed()

    def extend_window(self) -> None:
        self._send_command(self._call, native.TAKEN, False, b"")

    def reset(self, code: int) -> None:
        if not self.closed:
            self._send_command(self._call, native.RESET, True, _CODE.pack(code))
            self.close()


class NativeCalls:
    """The calls that Python handles, by their numbers.

    ::

        calls = NativeCalls(methods, max_request_bytes, decompress, send_command)
        calls.take(event)
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        max_request_bytes: int,
        decompress: Decompress,
        send_command: SendCommand,
    ) -> None:
        self._settings = methods, max_request_bytes, decompress
        self._send_command = send_command
        self._calls: dict[int, NativeCall] = {}

    def take(self, event: CallEvent) -> None:
        """What has happened to a call, or a new one."""
        if event.kind == native.OPEN:
            call = self._calls[event.call] = NativeCall(event.call, *self._settings, self._send)
            call.headers_received(unpack_fields(native.data_of(event)))
        elif (found := self._calls.get(event.call)) is not None:
            _advance(found, event)
            if found.closed:
                self._calls.pop(event.call, None)

    def abort(self) -> None:
        """End all of them."""
        for call in list(self._calls.values()):
            call.close()
            call.aborted(None)
        self._calls.clear()

    def _send(self, call: int, kind: int, last: bool, data: bytes | memoryview) -> None:
        if last:
            self._calls.pop(call, None)
        self._send_command(call, kind, last, data)


def _advance(call: NativeCall, event: CallEvent) -> None:
    if event.kind == native.MESSAGE:
        if not call.closed:
            try:
                data = native.data_of(event)
            except MemoryError:
                call.out_of_memory()
            else:
                call.message_received(memoryview(data), compressed=bool(event.code))
    elif event.kind == native.END:
        if not call.closed:
            call.remote_open = False
            call.end_received()
    elif event.kind == native.FLUSHED:
        call.flushed()
    else:
        call.close()
        call.aborted(event.code if event.code >= 0 else None)


def unpack_fields(data: bytes) -> list[Field]:
    """The header fields of an event.

    >>> unpack_fields(_SIZES.pack(5, 4) + b":pathname")
    [(':path', 'name')]
    """
    fields, at = [], 0
    while at < len(data):
        name, value = _SIZES.unpack_from(data, at)
        at += _SIZES.size
        fields.append((data[at : at + name].decode("latin-1"), data[at + name : at + name + value].decode("latin-1")))
        at += name + value
    return fields
