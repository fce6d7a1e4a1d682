"""Draws the states of a query as Markdown: `python -m veltair.scheduler.transition_table`."""

from __future__ import annotations

from collections.abc import Iterator

from veltair.scheduler.query_states import HOLDING_A_WORKER, MEANING, RUNNING_A_BLOCK, TRANSITIONS, QueryState, Trigger

_MEANS = {
    QueryState.NEW: "admitted, in no collection yet",
    QueryState.WAITING: "waits for its first block and holds no worker",
    QueryState.MEMBER: "runs in the batch that another query leads",
    QueryState.READY: "holds a worker, between two blocks",
    QueryState.RUNNING: "a block runs",
    QueryState.STOPPING: "a block runs and stops at its next layer; the query goes on later",
    QueryState.CANCELLING: "a block runs and stops at its next layer; the query ends then",
    QueryState.ENDED: "finished, rejected, failed or cancelled",
}


def draw_page() -> str:
    """The whole of docs/architecture/query-states.md."""
    return "\n".join(
        [
            "# States of a query",
            "",
            "Generated from `scheduler/query_states.py` by `python -m veltair.scheduler.transition_table`;",
            "a test checks that this page is its output. `SchedulerState` (`scheduler/state.py`) keeps a collection",
            "for each group of states, and changes it in one place together with the state.",
            "",
            *_rows("State", "Meaning", "Collections", rows=_state_rows()),
            "",
            "An empty cell is an error: the scheduler raises `InvariantError` and nothing changes.",
            "",
            *_rows("Trigger", *_STATES, rows=_transition_rows()),
            "",
            *_rows("Trigger", "What it is", rows=((_code(trigger), MEANING[trigger]) for trigger in Trigger)),
            "",
        ]
    )


_STATES = [state.name for state in QueryState if state is not QueryState.ENDED]


def _state_rows() -> Iterator[tuple[str, ...]]:
    for state in QueryState:
        yield _code(state), _MEANS[state], ", ".join(f"`{name}`" for name in _collections(state))


def _collections(state: QueryState) -> list[str]:
    """The collections of SchedulerState that hold a query in this state."""
    own = {QueryState.WAITING: ["waiting"], QueryState.MEMBER: ["leader_of"]}.get(state, [])
    held = ["in_flight"] if state in HOLDING_A_WORKER else []
    runs = ["running_blocks"] if state in RUNNING_A_BLOCK else []
    wants = {QueryState.READY: ["wants_cores"], QueryState.RUNNING: ["wants_cores (a block that can grow)"]}
    return own + held + runs + wants.get(state, [])


def _transition_rows() -> Iterator[tuple[str, ...]]:
    for trigger in Trigger:
        after = (TRANSITIONS[QueryState[name]].get(trigger) for name in _STATES)
        yield _code(trigger), *("" if state is None else state.name for state in after)


def _code(name: QueryState | Trigger) -> str:
    return f"`{name.name}`"


def _rows(*heads: str, rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    print(draw_page(), end="")
