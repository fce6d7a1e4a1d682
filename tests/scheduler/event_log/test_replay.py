import json

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile

from veltair.errors import ConfigError, InvariantError
from veltair.scheduler.event_log.replay import dump_decision, dump_event, load_decision, load_event, replay
from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CancelQuery,
    CountersSampled,
    FinishQuery,
    GrowBlock,
    QueryArrived,
    QueryCancelled,
    RejectQuery,
    StartBlock,
    StopBlock,
    WorkersChanged,
)
from veltair.scheduler.scheduler import Scheduler
from veltair.types import CounterSample, LayerBlock, Query

EVENTS = [
    QueryArrived(1, Query(1, "a", 1, 100, 2)),
    BlockFinished(2, 1, 3, 40),
    BlockFailed(3, 1, 'worker "died"\n'),
    BlockGrown(4, 1, 2, (0, 3)),
    QueryCancelled(5, 1),
    CountersSampled(6, CounterSample(6, 10, 5, 1, "perf")),
    WorkersChanged(7, 3),
]
DECISIONS = [
    StartBlock(LayerBlock(1, 0, 2, (1, 0), 4, 70), (0, 1, 2), True, 1.5),
    GrowBlock(1, (0, 1)),
    FinishQuery(1),
    RejectQuery(1, "too large"),
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


@pytest.fixture
def fresh():
    return lambda: Scheduler(make_machine(2), [make_tenant(50)], {"m": [simple_profile((30, 16))]}, "veltair-full", 2)


@pytest.fixture
def log(fresh):
    scheduler, lines = fresh(), []
    for event in (QueryArrived(0, make_query(1)), QueryArrived(5, make_query(2, 5)), BlockFinished(16, 1, 1, 16)):
        lines += [dump_event(event), *map(dump_decision, scheduler.handle(event))]
    assert len(lines) == 6
    return lines


def test_a_log_replays(fresh, log):
    assert replay(fresh(), log) == 3
    assert replay(fresh(), []) == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda log: log[:1] + log[2:], "line 2: expected StartBlock.*the log has an event"),
        (lambda log: [*log[:1], dump_decision(FinishQuery(1)), *log[2:]], "line 2: expected StartBlock.*FinishQuery"),
        (lambda log: [*log, dump_decision(FinishQuery(2))], "line 7: expected an event, the log has FinishQuery"),
        (lambda log: log[:-1], "after log line 5: expected FinishQuery.*the log ends"),
        (lambda log: [log[0], log[1].replace('"cores":1', '"cores":2'), *log[2:]], "line 2: expected StartBlock"),
    ],
    ids=["missing", "other", "surplus", "short", "altered"],
)
def test_any_difference_is_named(fresh, log, change, says):
    changed = change(log)
    assert changed != log
    with pytest.raises(InvariantError, match=says):
        replay(fresh(), changed)
