"""Traces as spans of OpenTelemetry, and `OtlpCollector`, which sends them by OTLP over gRPC or HTTP.

One trace a query: `infer` from its arrival to its response, and below it `decode`, `queue`, a `block` for each
layer-block, and `encode`. Only this module needs the packages of the extra `otel`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from veltair.server.front.tracing.otlp_settings import OtlpSettings
from veltair.server.front.tracing.query_trace import QueryTrace
from veltair.server.ipc.stages import EXECUTE, READ, REPORT
from veltair.server.ipc.status_records import BlockRecord

NOT_OURS = ("ok", "invalid", "cancelled")  # outcomes that are no errors of the server
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpCollector:
    """A collector at `http://HOST:PORT`, or `https://`.

    The exporters read the standard variables for headers, certificates and compression by themselves, and the resource
    OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.

    ::

        OtlpCollector(OtlpSettings("http://127.0.0.1:4317"), version="0.1.0").send([trace])
    """

    def __init__(self, settings: OtlpSettings, version: str) -> None:
        own = Resource({"service.name": "veltair", "service.version": version})
        self._resource = own.merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("veltair", version)
        self._ids = RandomIdGenerator()
        self._exporter = _exporter(settings)

    def send(self, traces: Sequence[QueryTrace]) -> bool:
        """Whether the collector has taken them; waits for it, and tries again for a while."""
        wall_ns = time.time_ns() - time.monotonic_ns()
        spans = [span for trace in traces for span in self._spans(trace, wall_ns)]
        return self._exporter.export(spans) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Give up what is being sent."""
        self._exporter.shutdown()

    def _new_span(self, trace_id: int, state: TraceState) -> SpanContext:
        return SpanContext(trace_id, self._ids.generate_span_id(), False, _SAMPLED, state)

    def _spans(self, trace: QueryTrace, wall_ns: int) -> Iterator[ReadableSpan]:
        context = trace.context
        trace_id = context.trace_id or self._ids.generate_trace_id()
        state = TraceState.from_header([context.state])
        whole = self._new_span(trace_id, state)
        caller = SpanContext(trace_id, context.parent_id, True, _SAMPLED, state) if context.trace_id else None

        def span(name: str, begin_ns: int, end_ns: int, attributes: Mapping[str, Any], **more: Any) -> ReadableSpan:
            own: dict[str, Any] = {"context": self._new_span(trace_id, state), "parent": whole} | more
            own |= {"start_time": wall_ns + begin_ns, "end_time": wall_ns + max(begin_ns, end_ns)}
            own |= {"resource": self._resource, "instrumentation_scope": self._scope}
            return ReadableSpan(name, attributes=attributes, **own)

        yield span(
            "infer",
            trace.arrival_ns,
            trace.end_ns,
            _query_attributes(trace),
            context=whole,
            parent=caller,
            kind=SpanKind.SERVER,
            status=Status(StatusCode.UNSET if trace.outcome in NOT_OURS else StatusCode.ERROR),
        )
        if trace.stage_ns:
            read_ns = trace.arrival_ns + trace.stage_ns[READ]
            yield span("decode", trace.arrival_ns, read_ns, {})
            yield span("queue", read_ns, trace.arrival_ns + sum(trace.stage_ns[:EXECUTE]), {})
        for block in trace.blocks:
            status = Status(StatusCode.ERROR if block.failed else StatusCode.UNSET)
            yield span("block", block.begin_ns, block.end_ns, _block_attributes(block), status=status)
        if trace.stage_ns:
            yield span("encode", trace.arrival_ns + sum(trace.stage_ns[: REPORT + 1]), trace.end_ns, {})


def _exporter(settings: OtlpSettings) -> SpanExporter:
    """The exporter, with its timeout given: the exporters take OTEL_EXPORTER_OTLP_TIMEOUT for seconds, which are
    milliseconds.
    """
    if settings.protocol == "grpc":
        insecure = settings.endpoint.startswith("http://")
        return GrpcExporter(endpoint=settings.endpoint, insecure=insecure, timeout=settings.timeout_s)
    return HttpExporter(endpoint=settings.endpoint, timeout=settings.timeout_s, session=_Session())


class _Session(requests.Session):
    """Certificates by OTEL_EXPORTER_OTLP_CERTIFICATE come before those of REQUESTS_CA_BUNDLE, which `requests` prefers
    to what a session has."""

    def merge_environment_settings(self, url: str, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        own = self.verify if isinstance(self.verify, str) else verify
        return super().merge_environment_settings(url, proxies, stream, own, cert)


def _query_attributes(trace: QueryTrace) -> dict[str, Any]:
    found = {
        "veltair.tenant": trace.tenant,
        "veltair.model": trace.model,
        "veltair.request_id": trace.request_id,
        "veltair.outcome": trace.outcome,
        "network.protocol.name": trace.context.protocol,
    }
    return found if trace.reason is None else found | {"error.type": trace.reason}


def _block_attributes(block: BlockRecord) -> dict[str, Any]:
    """What the scheduler decided for it. Of other tenants it says what the interference level does, and no more."""
    return {
        "veltair.layers.start": block.start,
        "veltair.layers.stop": block.stop,
        "veltair.cores": len(block.cores),
        "veltair.versions": block.versions,
        "veltair.level": block.level,
        "veltair.batch.queries": block.queries,
        "veltair.moves": len(block.core_changes),
    }
