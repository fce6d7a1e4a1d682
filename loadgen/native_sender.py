"""Sends a schedule over gRPC or HTTP in one native thread, which takes far less CPU time than the sender in Python.

`run_open_loop` is the reference: the same queries leave at the same times and end in the same outcomes. The C side is
in `native/`: `sender.h` has the layouts that are repeated here.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import unquote

import grpc
import numpy as np
from numpy.typing import NDArray

from veltair.errors import VeltairError
from veltair.loadgen.client import CallSettings, Outcome
from veltair.loadgen.grpc_client import MAX_ERROR, REFUSALS
from veltair.loadgen.http_client import REFUSALS as HTTP_REFUSALS
from veltair.loadgen.http_client import error_text
from veltair.loadgen.open_loop import STOPPED_EARLY, ArrivalSchedule, RunCounts, Trace
from veltair.loadgen.tenant_streams import TenantStream
from veltair.machine.native_library import array_address, native_library

LIBRARY = "veltair.loadgen._sender"
TEXTS, TEXT_BYTES = 64, 4096  # distinct error texts that are kept of a tenant
PROTOCOLS = ("grpc", "http")
STOP, END = 1, 2  # written to the eventfd
STATUS_NAMES: dict[int, str] = {status.value[0]: status.name for status in grpc.StatusCode}
RECORD = np.dtype(
    [("sent_ns", "i8"), ("done_ns", "i8"), ("bytes", "i8"), ("end", "i4"), ("code", "i4"), ("text", "i4")], align=True
)


class QueryEnd(IntEnum):
    """How a query ended: `query_end` of `sender.h`."""

    UNSENT = 0
    ANSWERED = 1  # with a status of gRPC
    RESPONDED = 2  # with a status of HTTP
    NO_STATUS = 3  # of gRPC
    RESET = 4
    LOST = 5
    TOO_LARGE = 6
    TIMED_OUT = 7
    UNCONNECTED = 8
    NO_HTTP2 = 9
    STOPPED = 10
    LOST_BEFORE = 11  # the connection, over HTTP/1.1
    LOST_WITHIN = 12
    NO_HTTP = 13
    NO_STATUS_LINE = 14
    BAD_LENGTH = 15
    NO_LENGTH = 16
    TOO_LONG = 17


class _Load(ctypes.Structure):
    """`load` of `sender.h`."""

    _fields_ = (
        ("protocol", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("arrival_ns", "tenant", "request", "data", "size")),
        ("head", ctypes.c_char_p),
        ("head_size", ctypes.c_int64),
        ("host", ctypes.c_char_p),
        ("port", ctypes.c_char_p),
        *(
            (name, ctypes.c_int64)
            for name in ("connections", "tenants", "window_ns", "timeout_ns", "patience_ns", "stop")
        ),
        *((name, ctypes.c_void_p) for name in ("counts", "records", "texts")),
    )


@cache
def _library() -> ctypes.CDLL:
    library = native_library(LIBRARY)
    library.send_load.argtypes, library.send_load.restype = (ctypes.POINTER(_Load),), ctypes.c_int64
    return library


def is_available() -> bool:
    """Whether the C part was built."""
    return find_spec(LIBRARY) is not None


class NativeRun:
    """One run of a schedule. The C side reads and writes the arrays, which stay where they are until it has returned.

    ::

        trace = await NativeRun(client.call_settings, streams, schedule, RunCounts()).run(asyncio.Event())
    """

    def __init__(
        self, calls: CallSettings, streams: Sequence[TenantStream], schedule: ArrivalSchedule, counts: RunCounts
    ) -> None:
        self._calls, self._schedule = calls, schedule
        requests = [request for stream in streams for request in stream.requests]
        before = np.cumsum([0, *(len(stream.requests) for stream in streams)])  # requests of the streams before each
        count = len(schedule.arrival_ns)
        self.records = np.zeros(count, RECORD)
        self._texts = np.zeros((len(streams), TEXTS, TEXT_BYTES), np.uint8)
        self._arrays: dict[str, NDArray[Any]] = {
            "arrival_ns": np.ascontiguousarray(schedule.arrival_ns, np.int64),
            "tenant": np.ascontiguousarray(schedule.stream, np.int64),
            "request": before[schedule.stream] + schedule.request,
            "data": np.array([array_address(np.frombuffer(request, np.uint8)) for request in requests], np.uint64),
            "size": np.array([len(request) for request in requests], np.int64),
            "records": self.records,
            "texts": self._texts,
        }
        self._kept = (requests, counts)
        self._load = _Load(
            protocol=PROTOCOLS.index(calls.protocol),
            queries=count,
            head=calls.head,
            head_size=len(calls.head),
            host=calls.host.encode(),
            port=str(calls.port).encode(),
            connections=calls.connections,
            tenants=len(streams),
            window_ns=schedule.window_ns[1],
            timeout_ns=round(calls.timeout_s * 1e9),
            patience_ns=max(stream.target_ns for stream in streams),
            counts=ctypes.addressof(counts),
            **{name: array_address(array) for name, array in self._arrays.items()},
        )

    async def run(self, stop: asyncio.Event) -> Trace:
        """Send the queries and wait until each has its outcome. A cancelled run ends at once."""
        cpu_ns = time.process_time_ns()
        self._load.stop = os.eventfd(0, os.EFD_CLOEXEC)
        sending = asyncio.create_task(asyncio.to_thread(self._send))
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            os.eventfd_write(self._load.stop, STOP)  # nobody reads it any more where all is sent
            cut_ns = await asyncio.shield(sending)
        finally:
            os.eventfd_write(self._load.stop, END)
            stopping.cancel()
            await asyncio.wait({sending})
            os.close(self._load.stop)
        if cut_ns < 0:
            raise VeltairError(f"the native sender cannot start: {os.strerror(-cut_ns)}")
        start, end = self._schedule.window_ns
        outcome = outcomes_of(self.records)
        return Trace(
            self._schedule,
            self.records["sent_ns"].copy(),
            self.records["done_ns"].copy(),
            outcome,
            (min(start, cut_ns), min(end, cut_ns)),
            self._count_failures(outcome),
            time.process_time_ns() - cpu_ns,
        )

    def _send(self) -> int:
        result: int = _library().send_load(ctypes.byref(self._load))
        return result

    def _count_failures(self, outcome: NDArray[np.int8]) -> Counter[tuple[int, str]]:
        measured = self._schedule.arrival_ns >= self._schedule.window_ns[0]
        failed = measured & ((outcome == Outcome.REFUSED) | (outcome == Outcome.ERROR))
        records = self.records[failed]
        announced = np.where(records["end"] == QueryEnd.TOO_LARGE, records["bytes"], 0)
        columns = (self._schedule.stream[failed], records["end"], records["code"], records["text"], announced)
        kinds, counts = np.unique(np.stack(columns, axis=1), axis=0, return_counts=True)
        failures: Counter[tuple[int, str]] = Counter()
        for (stream, end, code, text, announced_bytes), count in zip(kinds.tolist(), counts.tolist(), strict=True):
            failures[stream, self._reason(QueryEnd(end), code, self._text(stream, text), announced_bytes)] += count
        return failures

    def _text(self, stream: int, number: int) -> str:
        if number > TEXTS:
            return "(one of many texts)"
        return self._texts[stream, number - 1].tobytes().rstrip(b"\0").decode("latin-1") if number else ""

    def _reason(self, end: QueryEnd, code: int, text: str, announced_bytes: int) -> str:
        """Why a query failed, in the words of `GrpcClient.send` and `HttpClient.send`."""
        shown = text.encode("latin-1")
        match end:
            case QueryEnd.RESPONDED:
                return f"{code} {error_text(shown)}"
            case QueryEnd.ANSWERED:
                return f"{STATUS_NAMES[code]} {' '.join(unquote(text).split())}"[:MAX_ERROR]
            case QueryEnd.NO_STATUS:
                return f"HTTP status {code if code >= 0 else None}, no status of gRPC"
            case QueryEnd.RESET:
                return f"the call was reset with code {code}"
            case QueryEnd.LOST:
                return "the connection was lost"
            case QueryEnd.TOO_LARGE:
                return f"an answer of {announced_bytes} bytes was announced"
            case QueryEnd.TIMED_OUT:
                return f"no answer within {self._calls.timeout_s:g} s"
            case QueryEnd.UNCONNECTED:
                return str(OSError(code, os.strerror(code)))
            case QueryEnd.NO_HTTP2:
                return "it speaks no HTTP/2"
            case QueryEnd.LOST_BEFORE:
                return "connection closed before an answer"
            case QueryEnd.LOST_WITHIN:
                return "connection closed in the middle of an answer"
            case QueryEnd.NO_HTTP:
                return f"not HTTP: {shown!r}"
            case QueryEnd.NO_STATUS_LINE:
                return f"not an HTTP status line: {shown!r}"
            case QueryEnd.BAD_LENGTH:
                return f"content-length: {shown!r}"
            case QueryEnd.NO_LENGTH:
                return "an answer without content-length"
            case QueryEnd.TOO_LONG:
                return "more bytes than content-length"
            case _:
                return STOPPED_EARLY


def outcomes_of(records: NDArray[np.void]) -> NDArray[np.int8]:
    """The outcomes of records (dtype RECORD).

    >>> outcomes_of(np.array([(1, 2, 0, QueryEnd.ANSWERED, 14, 0)], RECORD)).tolist() == [Outcome.REFUSED]
    True
    """
    end, code = records["end"], records["code"]
    answered = end == QueryEnd.ANSWERED
    responded = end == QueryEnd.RESPONDED
    refused = answered & np.isin(code, [number for number, name in STATUS_NAMES.items() if name in REFUSALS])
    refused |= responded & np.isin(code, HTTP_REFUSALS)
    kinds = [end == QueryEnd.UNSENT, answered & (code == 0) | responded & (code == 200), refused]
    return np.select(kinds, [Outcome.UNSENT, Outcome.OK, Outcome.REFUSED], Outcome.ERROR).astype(np.int8)
