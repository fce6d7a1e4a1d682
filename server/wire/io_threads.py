"""`IoThreads`: the I/O threads of the front, and what Python does with their events."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veltair.config import LimitsConfig
from veltair.errors import ConfigError, VeltairError
from veltair.grpc.server import BACKLOG
from veltair.grpc.server_call import ANSWER_HEAD, ANSWER_TRAILERS, Decompress, Method
from veltair.server.ipc.native_library import array_address
from veltair.server.wire import native
from veltair.server.wire.native import CallEvent, Settings
from veltair.server.wire.native_call import NativeCall, unpack_fields
from veltair.server.wire.plan import Plan
from veltair.server.wire.settings import native_limits, native_refusals, outcome_statuses

TAKEN_AT_ONCE = 1 << 16  # counts


class ConnectionCounts(NamedTuple):
    """What clients use up: `threads.connection_counts().open`."""

    open: int
    held_bytes: int  # of requests and answers on their way
    refused: int  # so far, since there were too many
    expired: int  # so far, since they were too slow


class IoThreads:
    """Threads in C that serve gRPC and HTTP/1.1. Requests with a plan never reach Python.

    All others become a `NativeCall`, or are passed on to uvicorn.

    ::

        threads = IoThreads(1, infer_path="/inference.GRPCInferenceService/ModelInfer", …)
        port = await threads.listen(host, port, methods, inflate)
        threads.listen_http(listener, uvicorn_listener)
        threads.add_grpc_plan(message, "", plan)
        await threads.stop(grace_s=5)
    """

    def __init__(
        self,
        threads: int,
        *,
        home: int | None = None,
        infer_path: str,
        tenant_header: str,
        max_message_bytes: int,
        max_body_bytes: int,
        limits: LimitsConfig,
        hosts: Collection[str] = (),
    ) -> None:
        """Raises VeltairError when the system gives no thread.

        Args:
            home: the core that they stay on; None: any.
            infer_path: of the method whose requests may have plans.
            tenant_header: metadata, or the header over HTTP, that belongs to the head of a request.
            max_message_bytes: of gRPC.
            max_body_bytes: over HTTP.
            limits: what clients may use up.
            hosts: what requests over HTTP may name besides addresses, "*" for any; others are Python's.
        """
        self.count = threads
        self._max_message_bytes = max_message_bytes
        self._methods: Mapping[str, Method] = {}
        self._decompress: Decompress | None = None
        self._calls: dict[int, NativeCall] = {}
        self._native = native.library()
        self._listener: socket.socket | None = None
        self._http_listener: socket.socket | None = None  # closed by its owner
        self._idle: asyncio.Event | None = None
        self._counted: Callable[[NDArray[np.void]], None] | None = None
        self.on_failed: Callable[[int, int, str, str], None] = lambda query, tenant, request_id, why: None
        refusals = native_refusals()
        self._settings = Settings(  # the threads read it as long as they live
            threads=threads,
            home=-1 if home is None else home,
            outcome_status=outcome_statuses(),
            max_message_bytes=max_message_bytes,
            max_body_bytes=max_body_bytes,
            limits=native_limits(limits, max(max_message_bytes, max_body_bytes)),
            refusals=refusals,
            refusal_count=len(refusals),
            infer_path=infer_path.encode(),
            tenant_header=tenant_header.encode(),
            hosts=",".join(hosts).encode("latin-1", "replace"),
            head=ANSWER_HEAD,
            head_bytes=len(ANSWER_HEAD),
            trailers=ANSWER_TRAILERS,
            trailers_bytes=len(ANSWER_TRAILERS),
        )
        self.handle: int = self._native.wire_start(ctypes.byref(self._settings))
        if not self.handle:
            raise VeltairError(f"the system gives no {threads} threads for I/O")

    @property
    def wake_descriptors(self) -> Sequence[int]:
        """Event descriptors that wake a thread each."""
        return [self._native.wire_wake_fd(self.handle, thread) for thread in range(self.count)]

    def next_query(self) -> int:
        """A number for a query; the threads take theirs from the same sequence."""
        number: int = self._native.wire_next_query(self.handle)
        return number

    async def listen(
        self,
        host: str,
        port: int,
        methods: Mapping[str, Method],
        decompress: Decompress,
        counted: Callable[[NDArray[np.void]], None],
    ) -> int:
        """Accept connections, and return the port. Raises OSError.

        `counted` gets the queries (`native.ENDED`) that have ended without Python, from time to time.
        """
        v6 = ":" in host
        family = socket.AF_INET6 if v6 else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=v6)
        listener.setblocking(False)
        self._listener, self._methods, self._decompress, self._counted = listener, methods, decompress, counted
        asyncio.get_running_loop().add_reader(self._native.wire_events_fd(self.handle), self._read_events)
        self._native.wire_listen(self.handle, native.GRPC, listener.fileno())
        bound: int = listener.getsockname()[1]
        return bound

    def listen_http(self, listener: socket.socket, uvicorn: socket.socket) -> None:
        """Accept connections over HTTP/1.1, once `listen` has begun. What has no plan goes to uvicorn's Unix socket."""
        address = uvicorn.getsockname()
        name = address if isinstance(address, bytes) else address.encode()
        if not self._native.wire_forward_to(self.handle, name, len(name)):
            raise VeltairError(f"{name!r} is too long for the name of a Unix socket")
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # another process has begun to listen there meanwhile
            raise ConfigError(f"server.http: cannot listen ({error.strerror})") from None
        listener.setblocking(False)
        self._http_listener = listener
        self._native.wire_listen(self.handle, native.HTTP, listener.fileno())

    def set_open(self, open_: bool) -> None:
        """Whether requests with a plan are taken; else Python gets them, and says why they are refused."""
        if self.handle:
            self._native.wire_open(self.handle, int(open_))

    def add_grpc_plan(self, message: bytes | memoryview, tenant: str, plan: Plan) -> bool:
        """Requests with the head of this one follow the plan. Returns whether such a head can have one."""
        if not self.handle:
            return False
        source, values, name = np.frombuffer(message, np.uint8), plan.values(), tenant.encode("latin-1")
        added = self._native.wire_add_grpc_plan(
            self.handle, array_address(source), source.size, name, len(name), ctypes.byref(values)
        )
        return bool(added)

    def add_http_plan(self, path: bytes, json: bytes, tenant: str, plan: Plan) -> bool:
        """Likewise requests to this path whose bodies begin with this JSON, but for their ids (`id_bytes`)."""
        if not self.handle:
            return False
        values, name = plan.values(), tenant.encode("latin-1")
        parts = (path, len(path), json, len(json), name, len(name))
        return bool(self._native.wire_add_http_plan(self.handle, *parts, ctypes.byref(values)))

    def id_bytes(self, json: bytes) -> int:
        """Bytes at the beginning of this JSON that give an id which may differ under one plan; 0: it gives none so."""
        size: int = self._native.wire_id_bytes(json, len(json))
        return size

    def clear_plans(self) -> None:
        if self.handle:
            self._native.wire_clear_plans(self.handle)

    def drain_counts(self) -> None:
        """Hand on the queries that have ended since the last time."""
        if self._counted is None or not self.handle:
            return
        for thread in range(self.count):
            ended = np.empty(TAKEN_AT_ONCE, native.ENDED)
            taken = self._native.wire_take_counts(self.handle, thread, array_address(ended), len(ended))
            if taken:
                self._counted(ended[:taken])

    def connection_counts(self) -> ConnectionCounts:
        counts = np.zeros(4, np.uint64)
        if self.handle:
            self._native.wire_budget_counts(self.handle, array_address(counts))
        return ConnectionCounts(*counts.tolist())

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, let running ones end within the grace, then close all connections.

        Does nothing the second time.
        """
        if self._listener is not None and self.handle:
            self._idle = asyncio.Event()
            self._native.wire_leave(self.handle)
            for listener in (self._listener, self._http_listener):
                if listener is not None:
                    with contextlib.suppress(OSError):  # its owner has closed it
                        listener.shutdown(socket.SHUT_RDWR)  # from here on the system refuses clients
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), grace_s)
        if self._listener is not None and self.handle:  # nobody has closed it meanwhile
            asyncio.get_running_loop().remove_reader(self._native.wire_events_fd(self.handle))
            self.drain_counts()
        self.close()

    def close(self) -> None:
        """End the threads at once."""
        handle, self.handle = self.handle, 0
        if handle:
            self._native.wire_stop(handle)
        if self._listener is not None:
            self._listener.close()
        for call in list(self._calls.values()):
            call.close()
            call.aborted(None)
        self._calls.clear()

    # Events of calls that Python handles

    def _read_events(self) -> None:
        os.eventfd_read(self._native.wire_events_fd(self.handle))
        while event := self._native.wire_next_event(self.handle):
            try:
                self._dispatch(event.contents)
            finally:
                self._native.wire_free_event(event)

    def _dispatch(self, event: CallEvent) -> None:
        if event.kind == native.COUNTS:
            self.drain_counts()
        elif event.kind == native.IDLE:
            if self._idle is not None and self._native.wire_idle(self.handle):
                self._idle.set()
        elif event.kind == native.FAILED:
            self.on_failed(event.call, event.code, *native.unpack_failure(_bytes(event)))
        elif event.kind == native.OPEN:
            self._open(event)
        elif (call := self._calls.get(event.call)) is not None:
            self._advance(call, event)
            if call.closed:
                self._calls.pop(event.call, None)

    def _open(self, event: CallEvent) -> None:
        assert self._decompress is not None
        call = NativeCall(event.call, self._methods, self._max_message_bytes, self._decompress, self._send)
        self._calls[event.call] = call
        call.headers_received(unpack_fields(_bytes(event)))

    def _advance(self, call: NativeCall, event: CallEvent) -> None:
        if event.kind == native.MESSAGE:
            if not call.closed:
                call.message_received(memoryview(_bytes(event)), compressed=bool(event.code))
        elif event.kind == native.END:
            if not call.closed:
                call.remote_open = False
                call.end_received()
        elif event.kind == native.FLUSHED:
            call.flushed()
        else:
            call.close()
            call.aborted(event.code if event.code >= 0 else None)

    def _send(self, call: int, kind: int, last: bool, data: bytes | memoryview) -> None:
        if last:
            self._calls.pop(call, None)
        if self.handle:
            source = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
            self._native.wire_command(self.handle, call, kind, int(last), array_address(source), source.size)


def _bytes(event: CallEvent) -> bytes:
    return ctypes.string_at(event.data, event.size) if event.size else b""
