"""`wanted_traces`, and `trace_queries`: traces of a daemon's queries, from where they end to the collector."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from veltair.config import ServerConfig
from veltair.errors import ConfigError
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.inference_service import InferenceService
from veltair.server.front.metrics import Metrics
from veltair.server.front.tracing.otlp_settings import OtlpSettings, read_settings
from veltair.server.front.tracing.query_traces import QueryTraces
from veltair.server.front.tracing.trace_sender import Collector, TraceSender
from veltair.server.wire.io_threads import IoThreads
from veltair.server.wire.thread_traces import ThreadTraces

_log = logging.getLogger(__name__)


def wanted_traces(server: ServerConfig) -> OtlpSettings | None:
    """Where traces go; None where nobody wants any.

    Other programs share the environment. Where it alone asks for traces, a variable that the daemon does not follow,
    or packages that are not there, cost the traces and not the start. Raises ConfigError where the configuration asks.
    """
    try:
        settings = read_settings(server)
        if settings is not None:
            otlp_collector()
    except ConfigError as error:
        if server.otel is not None:
            raise
        _log.warning("there are no traces: %s", error)
        return None
    return settings


def otlp_collector() -> Callable[[OtlpSettings, str], Collector]:
    """Makes one from its settings and our version. Raises ConfigError without the packages of the extra `otel`."""
    try:
        from veltair.server.front.tracing.otlp import OtlpCollector
    except ImportError as error:
        raise ConfigError(
            f'traces (server.otel, OTEL_*) need the packages of `pip install "veltair[otel]"` ({error})'
        ) from None
    return OtlpCollector


@contextmanager
def trace_queries(
    settings: OtlpSettings,
    service: InferenceService,
    client: EngineClient,
    metrics: Metrics,
    threads: IoThreads | None,
) -> Iterator[None]:
    """Trace what is asked from here on; an event loop must run. Raises ConfigError as `otlp_collector` does."""
    with TraceSender(partial(otlp_collector(), settings, service.version)) as sender:
        traces = service.traces = QueryTraces(
            sender.add,
            settings.ratio,
            metrics.tenant_of,
            lambda name: metrics.tenants[name].model,
            None if threads is None else ThreadTraces(threads, settings.ratio),
        )
        client.on_traced, metrics.traces = traces.add_blocks, partial(_counts, sender, traces)
        if threads is not None:
            threads.on_drained = traces.take
        following = asyncio.create_task(traces.follow())
        try:
            yield
        finally:
            following.cancel()


def _counts(sender: TraceSender, traces: QueryTraces) -> dict[str, int]:
    """What became of all traces so far, for /metrics."""
    return {"sent": sender.sent, "failed": sender.failed, "dropped": sender.dropped + traces.lost}
