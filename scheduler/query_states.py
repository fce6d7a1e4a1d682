"""The states of a query and the table of transitions between them: the only rules by which a query moves on.

`python -m veltair.scheduler.transition_table` prints the table, `docs/architecture/query-states.md` shows it.
"""

from __future__ import annotations

from enum import IntEnum

from veltair.errors import InvariantError


class QueryState(IntEnum):
    """Where a query stands. A batch has one state, that of the query that leads it.

    >>> next_state(QueryState.WAITING, Trigger.START).name
    'RUNNING'
    """

    NEW = 0  # admitted, in no collection yet
    WAITING = 1  # for its first block; holds no worker
    MEMBER = 2  # runs in the batch that another query leads
    READY = 3  # holds a worker, between two blocks
    RUNNING = 4  # a block runs
    STOPPING = 5  # a block runs and stops at its next layer, after which the query goes on
    CANCELLING = 6  # a block runs and stops at its next layer, after which the query ends
    ENDED = 7  # in no collection any more


class Trigger(IntEnum):
    """What moves a query from state to state: an event, or a step that the policy asked for."""

    ADMIT = 0
    START = 1
    JOIN = 2
    GROW = 3
    STOP = 4
    REJECT = 5
    BLOCK_GROWN = 6
    BLOCK_FINISHED = 7
    BLOCK_STOPPED = 8
    LAST_BLOCK_FINISHED = 9
    BLOCK_FAILED = 10
    CANCEL = 11
    BATCH_ENDED = 12


MEANING = {
    Trigger.ADMIT: "`QueryArrived`, and admission takes the query",
    Trigger.START: "the policy's `Start`",
    Trigger.JOIN: "the policy's `Start` of another query names it as a member",
    Trigger.GROW: "the policy's `Grow`",
    Trigger.STOP: "the policy's `Stop`",
    Trigger.REJECT: "the policy's `Reject`",
    Trigger.BLOCK_GROWN: "`BlockGrown`",
    Trigger.BLOCK_FINISHED: "`BlockFinished` at the block's own end, with layers left",
    Trigger.BLOCK_STOPPED: "`BlockFinished` before the block's end",
    Trigger.LAST_BLOCK_FINISHED: "`BlockFinished` at the last layer",
    Trigger.BLOCK_FAILED: "`BlockFailed`",
    Trigger.CANCEL: "`QueryCancelled`, and nobody waits for the batch any more",
    Trigger.BATCH_ENDED: "the batch of which it is a member ends, or it alone is cancelled",
}

_NEW, _WAITING, _MEMBER, _READY, _RUNNING, _STOPPING, _CANCELLING, _ENDED = QueryState
RUNNING_A_BLOCK = frozenset({_RUNNING, _STOPPING, _CANCELLING})
HOLDING_A_WORKER = RUNNING_A_BLOCK | {_READY}

TRANSITIONS: dict[QueryState, dict[Trigger, QueryState]] = {
    _NEW: {Trigger.ADMIT: _WAITING},
    _WAITING: {
        Trigger.START: _RUNNING,
        Trigger.JOIN: _MEMBER,
        Trigger.REJECT: _ENDED,
        Trigger.CANCEL: _ENDED,
    },
    _MEMBER: {Trigger.BATCH_ENDED: _ENDED},
    _READY: {
        Trigger.START: _RUNNING,
        Trigger.REJECT: _ENDED,
        Trigger.BLOCK_FAILED: _ENDED,
        Trigger.CANCEL: _ENDED,
    },
    _RUNNING: {
        Trigger.GROW: _RUNNING,
        Trigger.STOP: _STOPPING,
        Trigger.BLOCK_GROWN: _RUNNING,
        Trigger.BLOCK_FINISHED: _READY,
        Trigger.LAST_BLOCK_FINISHED: _ENDED,
        Trigger.BLOCK_FAILED: _ENDED,
        Trigger.CANCEL: _CANCELLING,
    },
    _STOPPING: {
        Trigger.BLOCK_GROWN: _STOPPING,
        Trigger.BLOCK_FINISHED: _READY,
        Trigger.BLOCK_STOPPED: _READY,
        Trigger.LAST_BLOCK_FINISHED: _ENDED,
        Trigger.BLOCK_FAILED: _ENDED,
        Trigger.CANCEL: _CANCELLING,
    },
    _CANCELLING: {
        Trigger.BLOCK_GROWN: _CANCELLING,
        Trigger.BLOCK_FINISHED: _ENDED,
        Trigger.BLOCK_STOPPED: _ENDED,
        Trigger.LAST_BLOCK_FINISHED: _ENDED,
        Trigger.BLOCK_FAILED: _ENDED,
    },
    _ENDED: {},
}

# The same, indexed by number: [state][trigger].
_NEXT = [[TRANSITIONS[state].get(trigger) for trigger in Trigger] for state in QueryState]


def next_state(state: QueryState, trigger: Trigger) -> QueryState:
    """Raises InvariantError for a transition that is not in the table."""
    after = _NEXT[state][trigger]
    if after is None:
        raise InvariantError(f"a query in state {state.name} cannot take {trigger.name}")
    return after


def may_take(state: QueryState, trigger: Trigger) -> bool:
    """Whether the table has this transition."""
    return _NEXT[state][trigger] is not None
