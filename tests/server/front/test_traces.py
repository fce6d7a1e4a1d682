"""Traces in the front: whose they are, their two halves, and a collector that is slow or away."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest
from opentelemetry.trace import TraceState

from veltair.config import ServerConfig
from veltair.errors import ConfigError, OverloadedError, QueryError, RefusalReason
from veltair.server.front.tracing.otlp import OtlpCollector
from veltair.server.front.tracing.otlp_settings import OtlpSettings
from veltair.server.front.tracing.query_trace import QueryTrace
from veltair.server.front.tracing.query_traces import MOST_HALVES, QueryTraces
from veltair.server.front.tracing.start import otlp_collector, wanted_traces
from veltair.server.front.tracing.trace_context import TraceContext, read_tracestate
from veltair.server.front.tracing.trace_sender import TraceSender
from veltair.server.ipc.messages import QueryEnded
from veltair.server.ipc.status_records import BlockRecord

TRACE, PARENT = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
BLOCK = BlockRecord(1, "mlp", 0, 2, (0, 1), (0, 1), 100, 300, conflict=False, level=1.5)
ENDED = QueryTrace(
    TraceContext("grpc", TRACE, PARENT), "mlp", "mlp", "a7", "ok", 10, 400, None, (5, 5, 80, 200, 0, 50, 50)
)
WAIT_S = 60.0


def traceparent(flags: str) -> list[str]:
    return [f"00-{TRACE:032x}-{PARENT:016x}-{flags}"]


def traces(ratio: float = 0.0) -> tuple[QueryTraces, list[QueryTrace]]:
    whole: list[QueryTrace] = []
    return QueryTraces(whole.append, ratio, lambda number: "mlp", lambda tenant: "model"), whole


def test_a_client_decides_and_else_chance_does() -> None:
    never, always = traces()[0], traces(1.0)[0]
    for each in (never, always):
        assert each.begin(traceparent("01"), ["a=1", "b=2"], "http") == TraceContext("http", TRACE, PARENT, "a=1,b=2")
        assert each.begin(traceparent("00"), ["a=1"], "http") is None
    for none in ([], ["not valid"], [*traceparent("01"), *traceparent("01")]):
        assert never.begin(none, ["a=1"], "grpc") is None
        assert always.begin(none, ["a=1"], "grpc") == TraceContext("grpc")


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ([], ""),
        ([""], ""),
        (["a=1"], "a=1"),
        (["a=1 , b=2,,", "\tc=3"], "a=1,b=2,c=3"),
        (["fw529a3039@dt=FfAAAB/w,x-y_z*/0=!~ ~"], "fw529a3039@dt=FfAAAB/w,x-y_z*/0=!~ ~"),
        (["a=1", "a=2"], ""),
        (["A=1"], ""),
        (["a"], ""),
        (["a=1=2"], ""),
        (["a=\x7f"], ""),
        (["a=\u00e9"], ""),
        ([f"a{number}=1" for number in range(32)], ",".join(f"a{number}=1" for number in range(32))),
        ([f"a{number}=1" for number in range(33)], ""),
        (["a=" + "x" * 256, "b=" + "x" * 251], "a=" + "x" * 256 + ",b=" + "x" * 251),
        (["a=" + "x" * 256, "b=" + "x" * 252], ""),
        (["a=" + "x" * 257], ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_tracestate_is_a_list_of_members_or_nothing(values: list[str], state: str) -> None:
    assert read_tracestate(values) == state
    assert TraceState.from_header([state]).to_header() == state  # as others read it


@pytest.mark.parametrize("first", ["thread", "engine"])
def test_both_halves_make_a_trace_whichever_comes_first(first: str) -> None:
    made, whole = traces()
    for half in ("thread", "engine") if first == "thread" else ("engine", "thread"):
        assert whole == []
        if half == "thread":
            made._add_half(7, ENDED)
        else:
            made.add_blocks(QueryEnded(7, "done", blocks=(BLOCK,)))
    assert whole == [ENDED._replace(blocks=(BLOCK,))]
    made.settle(last=True)
    assert len(whole) == 1


def test_halves_whose_others_never_come_are_bounded() -> None:
    made, whole = traces()
    for query in range(1, MOST_HALVES + 3):
        made._add_half(query, ENDED)
    assert whole == [ENDED] * 2  # the oldest go without their blocks
    for query in range(MOST_HALVES + 3, 2 * MOST_HALVES + 6):
        made.add_blocks(QueryEnded(query, "done", blocks=(BLOCK,)))
    assert len(made._blocks) == MOST_HALVES
    made.settle()  # ENDED has waited since long ago
    assert len(whole) == MOST_HALVES + 2 and not made._traces


def test_an_error_says_its_reason_and_not_its_text() -> None:
    made, whole = traces()
    context = TraceContext("http", TRACE, PARENT)
    made.add_error(context, "mlp", "a7", OverloadedError(RefusalReason.SLOTS), 5)
    made.add_error(context, "mlp", "a8", QueryError("secret of a kernel"), 5)
    made.add_error(context, "mlp", "a9", ZeroDivisionError("secret of a program"), 5)
    assert [(each.request_id, each.outcome, each.reason) for each in whole] == [
        ("a7", "overloaded", "slots"),
        ("a8", "failed", whole[1].reason),
        ("a9", "failed", "internal"),
    ]
    assert "secret" not in repr(whole)


def test_the_spans_of_a_query_are_its_own() -> None:
    collector = OtlpCollector(OtlpSettings("http://127.0.0.1:1"), version="1")
    try:
        root, *children = collector._spans(ENDED._replace(blocks=(BLOCK, BLOCK)), wall_ns=1000)
        spans = [root, *children]
        assert [span.name for span in spans] == ["infer", "decode", "queue", "block", "block", "encode"]
        assert {span.context.trace_id for span in spans} == {TRACE} and root.parent.span_id == PARENT
        assert {span.parent.span_id for span in children} == {root.context.span_id}
        assert len({span.context.span_id for span in spans}) == len(spans)
        times = [(span.start_time - 1000, span.end_time - 1000) for span in spans]
        assert times == [(10, 400), (10, 15), (15, 100), (100, 300), (100, 300), (350, 400)]
        assert dict(children[2].attributes or {}) == {
            "veltair.layers.start": 0,
            "veltair.layers.stop": 2,
            "veltair.cores": 2,
            "veltair.versions": (0, 1),
            "veltair.level": 1.5,
            "veltair.batch.queries": 1,
            "veltair.moves": 0,
        }
        own = ENDED._replace(context=TraceContext("http"), outcome="overloaded", reason="slots", stage_ns=())
        [first], [second] = collector._spans(own, 0), collector._spans(own, 0)
        assert first.parent is None and first.context.trace_id != second.context.trace_id
        assert not first.status.is_ok and (first.attributes or {})["error.type"] == "slots"
    finally:
        collector.close()


class SlowCollector:
    """Takes nothing before it is told to; `answer` is what it says then."""

    def __init__(self, answer: bool | Exception = True) -> None:
        self.asked, self.told = threading.Event(), threading.Event()
        self.answer, self.taken = answer, 0

    def send(self, traces: Sequence[QueryTrace]) -> bool:
        self.asked.set()
        assert self.told.wait(WAIT_S)
        if isinstance(self.answer, Exception):
            raise self.answer
        self.taken += len(traces)
        return self.answer

    def close(self) -> None:
        self.told.set()


def test_what_a_slow_collector_has_no_room_for_is_dropped_and_counted() -> None:
    slow = SlowCollector()
    with TraceSender(lambda: slow, most_pending=3) as sender:
        sender.add(ENDED)
        assert slow.asked.wait(WAIT_S)
        for _ in range(10):
            sender.add(ENDED)  # and returns at once
        assert sender.dropped == 7
        slow.told.set()
    assert (sender.sent, sender.dropped, sender.failed, slow.taken) == (4, 7, 0, 4)


@pytest.mark.parametrize("answer", [False, ValueError("a trace is wrong")])
def test_traces_that_do_not_arrive_are_counted(answer: bool | Exception, caplog: pytest.LogCaptureFixture) -> None:
    away = SlowCollector(answer)
    away.told.set()
    with TraceSender(lambda: away) as sender:
        sender.add(ENDED)
    assert (sender.sent, sender.failed) == (0, 1)
    assert len(caplog.records) == isinstance(answer, Exception)


def test_without_the_packages_it_is_said_which_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "veltair.server.front.tracing.otlp", None)
    with pytest.raises(
        ConfigError, match=r'server\.otel, OTEL_\*\) need the packages of `pip install "veltair\[otel\]"`'
    ):
        otlp_collector()


@pytest.mark.parametrize(
    ("variable", "value"), [("OTEL_TRACES_SAMPLER", "always_on"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]
)
def test_an_environment_that_others_share_ends_no_start(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317")
    monkeypatch.setenv(variable, value)
    assert wanted_traces(ServerConfig()) is None
    [warning] = [record.getMessage() for record in caplog.records]
    assert warning.startswith(f"there are no traces: {variable}: expected ")
    with pytest.raises(ConfigError, match=f"^{variable}: "):
        wanted_traces(ServerConfig(otel="http://otel:4317"))


def test_an_environment_that_others_share_needs_no_packages(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "veltair.server.front.tracing.otlp", None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://otel:4317")
    assert wanted_traces(ServerConfig()) is None
    assert "need the packages of" in caplog.text
    with pytest.raises(ConfigError, match="need the packages of"):
        wanted_traces(ServerConfig(otel="http://otel:4317"))


def test_without_a_collector_none_of_its_packages_is_loaded() -> None:
    kinds = "('opentelemetry.sdk', 'opentelemetry.exporter')"  # FastAPI loads the interface
    code = f"import sys, veltair.commands.serve; print([m for m in sys.modules if m.startswith({kinds})])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
