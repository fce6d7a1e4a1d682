"""Traces over HTTP, by the standard's own exporter and its variables, to a collector behind a socket."""

from __future__ import annotations

import ssl
import threading
from pathlib import Path

import pytest
from certificates import authority, certificate
from otlp_receiver import receiving_http

from veltair.config import ServerConfig
from veltair.server.front.tracing.otlp import OtlpCollector
from veltair.server.front.tracing.otlp_settings import read_settings
from veltair.server.front.tracing.query_trace import QueryTrace
from veltair.server.front.tracing.trace_context import TraceContext

ENDED = QueryTrace(TraceContext("http"), "mlp", "mlp", "a7", "ok", 10, 400, None, (5, 5, 80, 200, 0, 50, 50))


def collector() -> OtlpCollector:
    settings = read_settings(ServerConfig())
    assert settings is not None and settings.protocol == "http/protobuf"
    return OtlpCollector(settings, version="1")


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


def test_headers_compression_and_the_name_of_the_service(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20eDp5,x-tenant=a")
    variables.setenv("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip")
    variables.setenv("OTEL_SERVICE_NAME", "ads")
    with receiving_http() as receiver:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        made = collector()
        assert made.send([ENDED])
        made.close()
        [headers] = receiver.headers
        assert (headers["authorization"], headers["x-tenant"]) == ("Basic eDp5", "a")
        assert headers["content-encoding"] == "gzip"
        trace = receiver.traces()["a7"]
        assert trace.root.resource["service.name"] == "ads" and {span.name for span in trace.children} == {
            "decode",
            "queue",
            "encode",
        }


def test_a_collector_that_is_busy_is_asked_again_and_one_that_refuses_is_not(variables: pytest.MonkeyPatch) -> None:
    with receiving_http() as receiver:
        variables.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{receiver.address}/v1/traces")
        made = collector()
        receiver.statuses = [503]
        assert made.send([ENDED]) and receiver.calls == 2
        receiver.statuses = [400]
        assert not made.send([ENDED]) and receiver.calls == 3
        made.close()


def test_one_that_takes_nothing_is_given_up_in_time(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
    with receiving_http() as receiver:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        receiver.gate.clear()
        made = collector()
        assert not made.send([ENDED])
        made.close()
    variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    away = collector()
    assert not away.send([ENDED])
    away.close()


def test_a_close_ends_the_wait_for_another_try(variables: pytest.MonkeyPatch) -> None:
    variables.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600000")
    with receiving_http() as receiver:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        receiver.statuses = [503] * 100
        made, sent = collector(), []
        sending = threading.Thread(target=lambda: sent.append(made.send([ENDED])))
        sending.start()
        while not receiver.calls:
            sending.join(0.01)
        made.close()
        sending.join(60.0)
        assert sent == [False]


def test_certificates_of_both_sides(variables: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ours", "others"):
        authority(tmp_path, name)
    certificate(tmp_path, "server", "ours", "IP:127.0.0.1")
    certificate(tmp_path, "client", "ours")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    context.load_verify_locations(tmp_path / "ours.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    variables.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "others.pem"))
    own = {"CERTIFICATE": "ours.pem", "CLIENT_CERTIFICATE": "client.pem", "CLIENT_KEY": "client.key"}
    variables.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5000")
    with receiving_http(context) as receiver:
        variables.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.address)
        for kind, file in own.items():
            variables.setenv(f"OTEL_EXPORTER_OTLP_{kind}", str(tmp_path / file))
        made = collector()
        assert made.send([ENDED])
        made.close()
        variables.setenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", str(tmp_path / "others.pem"))
        variables.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "200")
        stranger = collector()
        assert not stranger.send([ENDED])
        stranger.close()
        assert receiver.calls == 1
