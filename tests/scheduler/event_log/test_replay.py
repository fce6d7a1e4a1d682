"""A recorded log gives the same decisions again, and any difference is named."""

import pytest
from scheduler_builders import make_machine, make_query, make_tenant, simple_profile

from veltair.errors import InvariantError
from veltair.scheduler.event_log.records import dump_decision, dump_event
from veltair.scheduler.event_log.replay import replay
from veltair.scheduler.events import BlockFinished, FinishQuery, QueryArrived
from veltair.scheduler.scheduler import Scheduler


def make_scheduler():
    return Scheduler(make_machine(2), [make_tenant(50)], {"m": [simple_profile((30, 16))]}, "veltair-full", 2)


@pytest.fixture
def log():
    scheduler, lines = make_scheduler(), []
    for event in (QueryArrived(0, make_query(1)), QueryArrived(5, make_query(2, 5)), BlockFinished(16, 1, 1, 16)):
        lines += [dump_event(event), *map(dump_decision, scheduler.handle(event))]
    assert len(lines) == 6
    return lines


def test_a_log_replays(log):
    assert replay(make_scheduler(), log) == 3
    assert replay(make_scheduler(), []) == 0


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
def test_any_difference_is_named(log, change, says):
    changed = change(log)
    assert changed != log
    with pytest.raises(InvariantError, match=says):
        replay(make_scheduler(), changed)
