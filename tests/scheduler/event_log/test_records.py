"""The lines of a log: what is written is read again, and nothing else is."""

import json

import pytest

from veltair.errors import ConfigError, RefusalReason
from veltair.scheduler.event_log.records import dump_decision, dump_event, load_decision, load_event
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    CountersSampled,
    EdgeTimed,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
    WorkersChanged,
)
from veltair.types import CounterSample, LayerBlock, Query

EVENTS = [
    QueryArrived(1, Query(1, "a", 1, 100, 2)),
    QueryArrived(1, Query(2, "a", 1)),
    BlockFinished(2, 1, 3, 40),
    BlockFailed(3, 1, 'worker "died"\n'),
    BlockGrown(4, 1, 2, (0, 3)),
    QueryCancelled(5, 1),
    CountersSampled(6, CounterSample(6, 10, 5, 1, "perf")),
    EdgeTimed(7, {"a": 5, 'b"': 0}),
    WorkersChanged(7, 3),
]
DECISIONS = [
    StartBlock(LayerBlock(1, 0, 2, (1, 0), 4, 70), (0, 1, 2), True, 1.5),
    GrowBlock(1, (0, 1)),
    FinishQuery(1),
    RejectQuery(1, RefusalReason.OVERLOAD, for_ns=7),
    CancelQuery(1),
    StopBlock(1),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_events_survive(event):
    line = dump_event(event)
    assert "\n" not in line and json.loads(line)["type"] == type(event).__name__
    assert load_event(line) == event


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: type(decision).__name__)
def test_decisions_survive(decision):
    assert load_decision(dump_decision(decision)) == decision


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "expected a JSON object"),
        ("[1]", "expected a JSON object"),
        ("{", "expected a JSON object"),
        ('{"time_ns": 1}', "got None"),
        ('{"type": ["QueryArrived"]}', "to be one of"),
        ('{"type": "FinishQuery", "query": 1}', "got 'FinishQuery'"),
        ('{"type": "QueryCancelled", "time_ns": 1}', "expected the fields time_ns, query"),
        ('{"type": "QueryCancelled", "time_ns": 1, "query": 2, "more": 3}', "expected the fields"),
        ('{"type": "QueryCancelled", "time_ns": 1.5, "query": 2}', "QueryCancelled.time_ns: expected"),
        ('{"type": "QueryCancelled", "time_ns": true, "query": 2}', "QueryCancelled.time_ns: expected"),
        ('{"type": "QueryArrived", "time_ns": 1, "query": 2}', "QueryArrived.query: expected the fields"),
        ('{"type": "BlockGrown", "time_ns": 1, "query": 2, "layer": 0, "core_set": 3}', "core_set: expected"),
        ('{"type": "BlockGrown", "time_ns": 1, "query": 2, "layer": 0, "core_set": ["3"]}', "got '3'"),
    ],
)
def test_a_broken_record_is_refused(line, says):
    with pytest.raises(ConfigError, match=says):
        load_event(line)


def test_a_deadline_is_a_time_or_nothing():
    line = dump_event(QueryArrived(1, Query(1, "a", 1)))
    assert load_event(line).query.deadline_ns is None
    with pytest.raises(ConfigError, match=r"QueryArrived.query.deadline_ns: expected"):
        load_event(line.replace("null", '"soon"'))
