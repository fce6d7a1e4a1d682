"""`start_sender`: the way to the collector of the configuration, where the packages for it are installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from veltair.errors import ConfigError
from veltair.server.front.tracing.query_traces import QueryTraces
from veltair.server.front.tracing.trace_sender import Collector, TraceSender


def otlp_collector() -> Callable[[str, str], Collector]:
    """Makes one from its address and our version. Raises ConfigError without the packages of the extra `otel`."""
    try:
        from veltair.server.front.tracing.otlp import OtlpCollector
    except ImportError as error:
        raise ConfigError(f'server.otel: needs the packages of `pip install "veltair[otel]"` ({error})') from None
    return OtlpCollector


def start_sender(endpoint: str, version: str) -> TraceSender:
    """Raises ConfigError as `otlp_collector` does."""
    return TraceSender(partial(otlp_collector(), endpoint, version))


def trace_counts(sender: TraceSender, traces: QueryTraces) -> dict[str, int]:
    """What became of all traces so far, for /metrics."""
    return {"sent": sender.sent, "failed": sender.failed, "dropped": sender.dropped + traces.lost}
