"""Which events cannot be, given what the scheduler knows: the checks that run before anything is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from veltair.scheduler.events import (
    BlockFailed,
    BlockFinished,
    BlockGrown,
    CountersSampled,
    EdgeTimed,
    Event,
    QueryArrived,
    QueryCancelled,
    QueryRuns,
    TenantAdded,
    TenantRemoved,
    WorkersChanged,
)
from veltair.scheduler.query_states import QueryState
from veltair.scheduler.state import SchedulerState


def find_contradiction(state: SchedulerState, event: Event) -> str | None:
    """What is wrong with the event, in words; None if it can be. Changes nothing."""
    return _CHECKS[type(event)](state, event)


def _arrived(state: SchedulerState, event: QueryArrived | QueryRuns) -> str | None:
    query = event.query
    if query.id in state.waiting or query.id in state.in_flight or query.id in state.leader_of:
        return f"query {query.id} arrived twice"
    if query.tenant not in state.tenants:
        return f"query {query.id} is of an unknown tenant, {query.tenant!r}"
    return None


def _runs(state: SchedulerState, event: QueryRuns) -> str | None:
    if state.waiting or state.in_flight or not state.workers:
        return f"query {event.query.id} cannot run already: others are in flight, or there is no worker"
    if event.block.query != event.query.id or event.block.start != 0:
        return f"query {event.query.id} cannot begin with {event.block}"
    return _arrived(state, event)


def _finished(state: SchedulerState, event: BlockFinished) -> str | None:
    run = state.running_blocks.get(event.query)
    if run is None:
        return _runs_no_block(state, event.query)
    block = run.block
    if not block.start <= event.stop <= block.stop or event.elapsed_ns < 0:
        return f"query {event.query} cannot have finished so: it runs {block}"
    if event.stop < block.stop and state.in_flight[event.query].state is QueryState.RUNNING:
        return f"query {event.query} stopped at layer {event.stop} of {block}, which nobody asked for"
    return None


def _grown(state: SchedulerState, event: BlockGrown) -> str | None:
    run = state.running_blocks.get(event.query)
    if run is None:
        return _runs_no_block(state, event.query)
    since, before = run.stretches[-1]
    if not set(event.core_set) <= set(run.core_set) or len(event.core_set) < before:
        return f"query {event.query} ran on {before} cores and may use {run.core_set}"
    if not since <= event.layer <= run.block.stop:
        return f"query {event.query} runs {run.block}, its cores last changed at layer {since}"
    return None


def _failed(state: SchedulerState, event: BlockFailed) -> str | None:
    return None if event.query in state.in_flight else _is_not_in_flight(event.query)


def _cancelled(state: SchedulerState, event: QueryCancelled) -> str | None:
    query = event.query
    if query in state.in_flight or query in state.waiting or query in state.leader_of:
        return None
    return _is_not_in_flight(query)


def _workers_changed(state: SchedulerState, event: WorkersChanged) -> str | None:
    return f"{event.workers} workers" if event.workers < 0 else None


def _always_possible(state: SchedulerState, event: CountersSampled | EdgeTimed) -> str | None:
    return None


def _added(state: SchedulerState, event: TenantAdded) -> str | None:
    if event.tenant.name in state.tenants:
        return f"tenant {event.tenant.name!r} was added twice"
    if event.tenant.model not in state.costs:
        return f"tenant {event.tenant.name!r} has a model that was not learned, {event.tenant.model!r}"
    return "a latency target above 0 ns is needed" if event.tenant.qos.latency_ns <= 0 else None


def _removed(state: SchedulerState, event: TenantRemoved) -> str | None:
    if event.tenant not in state.tenants:
        return f"tenant {event.tenant!r} is unknown"
    left = sum(active.tenant.name == event.tenant for active in (*state.waiting.values(), *state.in_flight.values()))
    return f"tenant {event.tenant!r} still has {left} queries" if left else None


_CHECKS: dict[type[Event], Callable[[SchedulerState, Any], str | None]] = {
    QueryArrived: _arrived,
    QueryRuns: _runs,
    BlockFinished: _finished,
    BlockGrown: _grown,
    BlockFailed: _failed,
    QueryCancelled: _cancelled,
    CountersSampled: _always_possible,
    EdgeTimed: _always_possible,
    WorkersChanged: _workers_changed,
    TenantAdded: _added,
    TenantRemoved: _removed,
}


def _runs_no_block(state: SchedulerState, query: int) -> str:
    return f"query {query} runs no block" if query in state.in_flight else _is_not_in_flight(query)


def _is_not_in_flight(query: int) -> str:
    return f"query {query} is not in flight"
