"""Traces of queries: each way of asking, from the client's traceparent to a collector of OpenTelemetry's protocol.

The collector is that protocol's own gRPC service in this process, asked over a socket; its usual binary is no Python
package.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import SPIN_LAYERS
from otlp_receiver import Trace, receiving, receiving_http
from running_daemon import configuration, running, serve, spin, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def clients(daemon: Any) -> list[tuple[str, Any, Any]]:
    return [
        ("grpc", triton_grpc, triton_grpc.InferenceServerClient(daemon.grpc)),
        ("http", triton_http, triton_http.InferenceServerClient(daemon.http, network_timeout=WAIT_S)),
    ]


def traceparent(number: int, *, sampled: bool = True) -> dict[str, str]:
    """Of a trace of its own."""
    return {"traceparent": f"00-{number:032x}-{PARENT}-{sampled:02x}", "tracestate": f"rojo={number:032x}"}


def check_whole(trace: Trace, layers: int) -> None:
    """Its spans lie behind each other, within the whole, and name every layer."""
    [decode], [queue], [encode] = (trace.named(name) for name in ("decode", "queue", "encode"))
    blocks = trace.named("block")
    root = trace.root
    assert root.begin_ns == decode.begin_ns <= decode.end_ns == queue.begin_ns <= queue.end_ns
    for before, behind in zip([queue, *blocks], [*blocks, encode], strict=True):
        assert before.end_ns <= behind.begin_ns <= behind.end_ns <= root.end_ns
    starts = [int(block.attributes["veltair.layers.start"]) for block in blocks]
    stops = [int(block.attributes["veltair.layers.stop"]) for block in blocks]
    assert starts == [0, *stops[:-1]] and stops[-1] == layers
    for block in blocks:
        own = block.attributes
        assert own["veltair.cores"] >= 1 and own["veltair.level"] >= 1
        assert len(own["veltair.versions"]) == own["veltair.layers.stop"] - own["veltair.layers.start"]


def test_each_query_with_a_sampled_context_is_one_trace(artifacts: Path, tmp_path: Path, fronts: int) -> None:
    with receiving() as collector:
        text = configuration(artifacts, "spin", "brittle", fronts=fronts, otel=collector.address)
        number, expected = 0, {}
        with running(tmp_path, text) as daemon:
            for name, module, client in clients(daemon):
                with client:
                    for turn in range(3):  # the first is Python's, the others follow its plan
                        number += 1
                        key = f"{name}-{turn}"
                        client.infer("spin", spin(module, 2, 1), request_id=key, headers=traceparent(number))
                        expected[key] = f"{number:032x}"
                        client.infer(
                            "spin",
                            spin(module, 2, 1),
                            request_id=f"{key}-unsampled",
                            headers=traceparent(99, sampled=False),
                        )
                        client.infer("spin", spin(module, 2, 1), request_id=f"{key}-none")
                    client.infer("brittle", spin(module, 0, 50), request_id=f"{name}-good")
                    number += 1
                    with pytest.raises(InferenceServerException):
                        client.infer(
                            "brittle", spin(module, 1, 50), request_id=f"{name}-bad", headers=traceparent(number)
                        )
                    expected[f"{name}-bad"] = f"{number:032x}"
            until("all traces", lambda: collector.traces().keys() >= expected.keys())
            assert daemon.metric("veltair_traces_total", outcome="sent") == len(expected)
            assert daemon.metric("veltair_traces_total", outcome="dropped") == 0
        found = collector.traces()
        assert {key: trace.root.trace_id for key, trace in found.items()} == expected
        for key, trace in found.items():
            name, _, turn = key.partition("-")
            own = trace.root.attributes
            assert trace.root.parent_id == PARENT and trace.root.resource["service.name"] == "veltair"
            assert {span.state for span in (trace.root, *trace.children)} == {f"rojo={trace.root.trace_id}"}
            assert (own["veltair.tenant"], own["network.protocol.name"]) == (
                "brittle" if turn == "bad" else "spin",
                name,
            )
            if turn == "bad":
                assert trace.root.failed and (own["veltair.outcome"], own["error.type"]) == ("failed", "kernel")
                assert [(span.name, span.failed) for span in trace.children] == [("block", True)] * bool(fronts)
            else:
                assert not trace.root.failed and own["veltair.outcome"] == "ok"
                check_whole(trace, layers=SPIN_LAYERS)


def test_a_ratio_of_queries_whose_clients_say_nothing(artifacts: Path, tmp_path: Path) -> None:
    with receiving() as collector:
        text = configuration(artifacts, "mlp", "spin", otel=collector.address, otel_ratio=1.0)
        asked = []
        with running(tmp_path, text) as daemon:
            for name, module, client in clients(daemon):
                with client:
                    for turn in range(2):  # by Python, and by an I/O thread
                        asked.append(f"{name}-{turn}")
                        client.infer("spin", spin(module, 2, 1), request_id=asked[-1])
        found = collector.traces()  # the last ones were sent before the daemon ended
        assert found.keys() == set(asked)
        assert len({trace.root.trace_id for trace in found.values()}) == len(asked)
        for trace in found.values():
            assert trace.root.parent_id == ""
            check_whole(trace, layers=SPIN_LAYERS)
            told = [span.attributes for span in (trace.root, *trace.children)]
            assert "mlp" not in str(told), "a trace names its own tenant alone"


def test_over_http_by_the_standard_variables_alone(
    artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving_http() as collector:
        for name, value in (
            ("EXPORTER_OTLP_ENDPOINT", collector.address),
            ("EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("EXPORTER_OTLP_HEADERS", "x-tenant=a"),
            ("TRACES_SAMPLER", "parentbased_traceidratio"),
            ("TRACES_SAMPLER_ARG", "1"),
        ):
            monkeypatch.setenv(f"OTEL_{name}", value)
        asked = []
        with running(tmp_path, configuration(artifacts, "spin")) as daemon:
            for name, module, client in clients(daemon):
                with client:
                    for turn in range(2):  # by Python, and by an I/O thread
                        asked.append(f"{name}-{turn}")
                        client.infer("spin", spin(module, 2, 1), request_id=asked[-1])
                    client.infer(
                        "spin", spin(module, 2, 1), request_id="unsampled", headers=traceparent(9, sampled=False)
                    )
        found = collector.traces()
        assert found.keys() == set(asked) and {each["x-tenant"] for each in collector.headers} == {"a"}
        for trace in found.values():
            check_whole(trace, layers=SPIN_LAYERS)


def test_a_variable_that_cannot_be_followed(artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    process = serve(tmp_path, configuration(artifacts, "spin", otel="http://127.0.0.1:9"))
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert errors.startswith("veltair serve: OTEL_EXPORTER_OTLP_PROTOCOL: expected ") and errors.count("\n") == 1


@pytest.mark.parametrize("how", ["away", "stuck", "refuses"])
def test_a_collector_that_fails_costs_traces_alone(artifacts: Path, tmp_path: Path, how: str) -> None:
    with receiving() as collector:
        if how == "stuck":
            collector.gate.clear()
        collector.refuses = how == "refuses"
        address = "http://127.0.0.1:9" if how == "away" else collector.address
        with running(tmp_path, configuration(artifacts, "spin", otel=address, otel_ratio=1.0)) as daemon:
            for name, module, client in clients(daemon):
                with client:
                    for turn in range(5):
                        client.infer("spin", spin(module, 2, 1), request_id=f"{name}-{turn}")
            if how == "refuses":
                until("they are counted", lambda: daemon.metric("veltair_traces_total", outcome="failed") == 10)
            elif how == "stuck":
                until("it was asked", lambda: collector.calls > 0)
            assert daemon.metric("veltair_traces_total", outcome="sent") == 0
            assert daemon.metric("veltair_requests_total", tenant="spin", outcome="ok") == 10
            daemon.process.terminate()
            assert daemon.process.wait(WAIT_S) == 0
        assert collector.spans == []


def test_an_address_that_is_none(artifacts: Path, tmp_path: Path) -> None:
    process = serve(tmp_path, configuration(artifacts, "spin", otel="127.0.0.1:4317"))
    _, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "server.otel: expected http://HOST:PORT or https://HOST:PORT, found '127.0.0.1:4317'" in errors


def test_traces_go_on_when_the_engine_was_replaced(artifacts: Path, tmp_path: Path) -> None:
    """The exporter's library has threads in the process that starts the next engine."""
    with receiving() as collector:
        with running(tmp_path, configuration(artifacts, "spin", otel=collector.address, otel_ratio=1.0)) as daemon:
            [(_, module, client), _] = clients(daemon)
            with client:
                client.infer("spin", spin(module, 2, 1), request_id="before")
                until("the first trace", lambda: "before" in collector.traces())
                children = psutil.Process(daemon.process.pid).children()
                next(each for each in children if "engine_main" in " ".join(each.cmdline())).kill()
                until("another engine", lambda: daemon.metric("veltair_events_total", kind="engine_restarted") == 1)
                until("it serves", client.is_server_ready)
                for turn in range(2):  # by Python, and by an I/O thread
                    client.infer("spin", spin(module, 2, 1), request_id=f"behind-{turn}")
        for turn in range(2):
            check_whole(collector.traces()[f"behind-{turn}"], layers=SPIN_LAYERS)
