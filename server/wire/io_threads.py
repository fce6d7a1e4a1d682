"""`IoThreads`: the I/O threads of the front, and what Python does with their events."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veltair.access_config import TlsConfig
from veltair.config import LimitsConfig
from veltair.errors import ConfigError, RefusalReason, VeltairError
from veltair.grpc.server import BACKLOG
from veltair.grpc.server_call import ANSWER_HEAD, ANSWER_TRAILERS, Decompress, Method
from veltair.machine.native_library import array_address
from veltair.server.wire import native
from veltair.server.wire.ended_requests import take_ended
from veltair.server.wire.native import CallEvent, Settings
from veltair.server.wire.native_call import NativeCalls
from veltair.server.wire.plan import Plan
from veltair.server.wire.settings import native_limits, native_refusals, outcome_statuses


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
        threads.forward_to(uvicorn_listener)
        threads.listen_http(listener)
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
        self._python_calls: NativeCalls | None = None
        self.uvicorn_secret = secrets.token_hex(16).encode()  # at the beginning of what comes to uvicorn
        self._native = native.library()
        self._listener: socket.socket | None = None
        self._http_listeners: list[socket.socket] = []  # closed by their owner
        self._idle: asyncio.Event | None = None
        self._counted: Callable[[NDArray[np.void]], None] | None = None
        self._logged: Callable[[NDArray[np.void], NDArray[np.void]], None] | None = None
        self.on_drained: Callable[[], None] = lambda: None  # after `drain_counts`
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
            uvicorn_secret=self.uvicorn_secret,
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
        """Accept connections, and return the port. `counted` gets the queries (`native.ENDED`) that have ended without
        Python, from time to time. Raises OSError."""
        v6 = ":" in host
        family = socket.AF_INET6 if v6 else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG, dualstack_ipv6=v6)
        listener.setblocking(False)
        self._listener, self._counted = listener, counted
        self._python_calls = NativeCalls(methods, self._max_message_bytes, decompress, self._send)
        asyncio.get_running_loop().add_reader(self._native.wire_events_fd(self.handle), self._read_events)
        self._native.wire_listen(self.handle, native.GRPC, listener.fileno())
        bound: int = listener.getsockname()[1]
        return bound

    def forward_to(self, uvicorn: socket.socket) -> None:
        """What has no plan over HTTP goes to this Unix socket, where each connection begins with `uvicorn_secret`."""
        address = uvicorn.getsockname()
        name = address if isinstance(address, bytes) else address.encode()
        if not self._native.wire_forward_to(self.handle, name, len(name)):
            raise VeltairError(f"{name!r} is too long for the name of a Unix socket")

    def listen_http(self, listener: socket.socket, kind: int = native.HTTP) -> None:
        """Accept connections over HTTP/1.1, once `listen` has begun. `kind`: native.ADMIN for one without inference."""
        try:
            listener.listen(BACKLOG)
        except OSError as error:  # another process has begun to listen there meanwhile
            key = "admin" if kind == native.ADMIN else "http"
            raise ConfigError(f"server.{key}: cannot listen ({error.strerror})") from None
        listener.setblocking(False)
        self._http_listeners.append(listener)
        self._native.wire_listen(self.handle, kind, listener.fileno())

    def use_tls(self, tls: TlsConfig, names: Sequence[str]) -> bool:
        """Encrypt new connections from here on. `names`: those in clients' certificates by which they are known.

        Returns whether it can be done; else all stays as it was.
        """
        authorities = None if tls.client_authorities is None else os.fsencode(tls.client_authorities)
        files = os.fsencode(tls.certificate), os.fsencode(tls.key), authorities
        return bool(self.handle and self._native.wire_use_tls(self.handle, *files, ",".join(names).encode()))

    def set_open(self, open_: bool) -> None:
        """Whether requests with a plan are taken; else Python gets them, and says why they are refused."""
        if self.handle:
            self._native.wire_open(self.handle, int(open_))

    def add_grpc_plan(self, message: bytes | memoryview, tenant: str, plan: Plan, caller: bytes = b"") -> bool:
        """Requests with the head of this one follow the plan. Returns whether such a head can have one.

        `tenant` and `caller`: the header that names a tenant, and by what the caller is known, where callers are named.
        """
        if not self.handle:
            return False
        source, values, by = np.frombuffer(message, np.uint8), plan.values(), _requester(tenant, caller)
        head = array_address(source), source.size
        return bool(self._native.wire_add_grpc_plan(self.handle, *head, ctypes.byref(by), ctypes.byref(values)))

    def add_http_plan(self, path: bytes, json: bytes, tenant: str, plan: Plan, caller: bytes = b"") -> bool:
        """The same for HTTP requests to this path whose bodies begin with this JSON, except for ids (`id_bytes`)."""
        if not self.handle:
            return False
        values, by = plan.values(), _requester(tenant, caller)
        parts = (path, len(path), json, len(json))
        return bool(self._native.wire_add_http_plan(self.handle, *parts, ctypes.byref(by), ctypes.byref(values)))

    def name_callers(self, named: bool) -> None:
        """Whether plans are for one caller alone from here on, who has to be named."""
        if self.handle:
            self._native.wire_name_callers(self.handle, int(named))
        self.clear_plans()

    def id_bytes(self, json: bytes) -> int:
        """Bytes at the beginning of this JSON that give an id which may differ under one plan; 0: it gives none so."""
        size: int = self._native.wire_id_bytes(json, len(json))
        return size

    def clear_plans(self) -> None:
        if self.handle:
            self._native.wire_clear_plans(self.handle)

    def clear_plans_of(self, tenants: Iterable[int]) -> None:
        """Those for tenants with these numbers."""
        for tenant in tenants if self.handle else ():
            self._native.wire_clear_plans_of(self.handle, tenant)

    def drain_counts(self) -> None:
        """Hand on the queries that have ended since the last time."""
        if self._counted is None or not self.handle:
            return
        for ended, ids in take_ended(self._native, self.handle, self.count, with_ids=self._logged is not None):
            self._counted(ended)
            if self._logged is not None and ids is not None:
                self._logged(ended, ids)
        self.on_drained()

    def log_ended(self, logged: Callable[[NDArray[np.void], NDArray[np.void]], None]) -> None:
        """Have `logged` get those queries too from here on, and the ids of their requests (`native.ENDED_ID`)."""
        self._logged = logged
        self._native.wire_keep_ids(self.handle)

    def connection_counts(self) -> ConnectionCounts:
        counts = np.zeros(4, np.uint64)
        if self.handle:
            self._native.wire_budget_counts(self.handle, array_address(counts))
        return ConnectionCounts(*counts.tolist())

    def refusal_counts(self) -> Mapping[str, int]:
        """Requests that were refused before their tenant was known, so far, by RefusalReason."""
        counts = np.zeros(1 + len(RefusalReason), np.uint64)
        if self.handle:
            self._native.wire_refusal_counts(self.handle, array_address(counts), len(counts))
        return dict(zip(RefusalReason, counts[1:].tolist(), strict=True))

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, let running ones end within the grace, then close all connections.

        Does nothing the second time.
        """
        if self._listener is not None and self.handle:
            self._idle = asyncio.Event()
            self._native.wire_leave(self.handle)
            for listener in (self._listener, *self._http_listeners):
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
        if self._python_calls is not None:
            self._python_calls.abort()

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
            self.on_failed(event.call, event.code, *native.unpack_failure(native.data_of(event)))
        elif self._python_calls is not None:
            self._python_calls.take(event)

    def _send(self, call: int, kind: int, last: bool, data: bytes | memoryview) -> None:
        if self.handle:
            source = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
            self._native.wire_command(self.handle, call, kind, int(last), array_address(source), source.size)


def _requester(tenant: str, caller: bytes) -> native.Requester:
    name = tenant.encode("latin-1")
    return native.Requester(name, len(name), caller, len(caller))
