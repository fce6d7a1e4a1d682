"""Collectors of OpenTelemetry's protocol that keep the spans that come: its own gRPC service, and its way over HTTP."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as pb_grpc


@dataclass(frozen=True)
class Received:
    """A span as it came: `received.attributes["veltair.tenant"]`."""

    trace_id: str  # in hex, as in a traceparent
    span_id: str
    parent_id: str  # empty: it has none
    state: str  # tracestate
    name: str
    begin_ns: int
    end_ns: int
    failed: bool
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]


class Receiver(pb_grpc.TraceServiceServicer):  # type: ignore[misc]
    """`collector.address` is for `server.otel`; `gate`, once cleared, keeps exporters waiting."""

    def __init__(self) -> None:
        self.address = ""
        self.gate = threading.Event()
        self.gate.set()
        self.refuses = False
        self.calls = 0
        self._spans: list[Received] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls += 1
        self.gate.wait()
        if self.refuses:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not today")
        return self.keep(request)

    def keep(self, request: Any) -> Any:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self._spans += [_received(span, _values(resource.resource.attributes)) for span in scope.spans]
        return pb.ExportTraceServiceResponse()

    @property
    def spans(self) -> list[Received]:
        return list(self._spans)

    def traces(self) -> dict[str, Trace]:
        """Those whose root has come, by the request's id."""
        by_trace: dict[str, list[Received]] = defaultdict(list)
        for span in self.spans:
            by_trace[span.trace_id].append(span)
        found = {}
        for spans in by_trace.values():
            for root in spans:
                if root.name == "infer":
                    children = [span for span in spans if span.parent_id == root.span_id]
                    found[str(root.attributes["veltair.request_id"])] = Trace(root, children)
        return found


@dataclass
class Trace:
    """The spans of one query."""

    root: Received
    children: list[Received] = field(default_factory=list)

    def named(self, name: str) -> list[Received]:
        return [span for span in self.children if span.name == name]


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _received(span: Any, resource: Mapping[str, Any]) -> Received:
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    times = span.start_time_unix_nano, span.end_time_unix_nano
    return Received(
        *ids, span.trace_state, span.name, *times, span.status.code == 2, _values(span.attributes), resource
    )


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """A collector that listens on this machine."""
    receiver, threads = Receiver(), ThreadPoolExecutor(4)
    server = grpc.server(threads)
    pb_grpc.add_TraceServiceServicer_to_server(receiver, server)
    receiver.address = f"http://127.0.0.1:{server.add_insecure_port(f'127.0.0.1:{port}')}"
    server.start()
    try:
        yield receiver
    finally:
        receiver.gate.set()
        server.stop(0).wait()
        threads.shutdown()


class HttpReceiver(Receiver):
    """The same over HTTP; `headers` are those of each request, `statuses` what it says to the next ones before 200."""

    def __init__(self) -> None:
        super().__init__()
        self.headers: list[Mapping[str, str]] = []
        self.statuses: list[int] = []

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        self.calls += 1
        self.gate.wait()
        self.headers.append(headers)
        if path != "/v1/traces" or headers["content-type"] != "application/x-protobuf":
            return 404, b""
        if self.statuses:
            return self.statuses.pop(0), b""
        whole = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        return 200, self.keep(pb.ExportTraceServiceRequest.FromString(whole)).SerializeToString()


@contextmanager
def receiving_http(context: ssl.SSLContext | None = None) -> Iterator[HttpReceiver]:
    """A collector that listens on this machine, with TLS where there is a context."""
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {key.lower(): value for key, value in self.headers.items()}
            status, answer = receiver.answer(self.path, headers, body)
            self.send_response(status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        receiver.address = f"http{'' if context is None else 's'}://127.0.0.1:{server.server_port}"
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield receiver
        finally:
            receiver.gate.set()
            server.shutdown()
            serving.join()
