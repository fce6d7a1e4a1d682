"""The table of states and transitions, and the page that shows it."""

from pathlib import Path

import pytest

from veltair.errors import InvariantError
from veltair.scheduler.query_states import (
    HOLDING_A_WORKER,
    MEANING,
    RUNNING_A_BLOCK,
    TRANSITIONS,
    QueryState,
    Trigger,
    may_take,
    next_state,
)
from veltair.scheduler.transition_table import draw_page

PAGE = Path(__file__).parents[2] / "docs/architecture/query-states.md"


@pytest.mark.parametrize("state", QueryState)
@pytest.mark.parametrize("trigger", Trigger)
def test_what_is_not_in_the_table_raises(state, trigger):
    after = TRANSITIONS[state].get(trigger)
    assert may_take(state, trigger) is (after is not None)
    if after is None:
        with pytest.raises(InvariantError, match=f"state {state.name} cannot take {trigger.name}"):
            next_state(state, trigger)
    else:
        assert next_state(state, trigger) is after


def test_every_state_is_reached_and_every_one_but_the_last_is_left():
    reached = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == set(QueryState) - {QueryState.NEW}
    assert {state for state, row in TRANSITIONS.items() if not row} == {QueryState.ENDED}
    assert MEANING.keys() == set(Trigger)


def test_only_a_block_that_was_told_to_stop_may_end_early():
    assert {state for state in QueryState if may_take(state, Trigger.BLOCK_STOPPED)} == (
        RUNNING_A_BLOCK - {QueryState.RUNNING}
    )


def test_what_holds_a_worker_may_fail():
    assert {state for state in QueryState if may_take(state, Trigger.BLOCK_FAILED)} == HOLDING_A_WORKER


def test_the_page_shows_the_table():
    """To renew it: `python -m veltair.scheduler.transition_table > docs/architecture/query-states.md`."""
    assert PAGE.read_text("utf-8") == draw_page()
