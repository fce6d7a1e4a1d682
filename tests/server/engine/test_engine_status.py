"""What the engine says of itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from veltair.scheduler.scheduler import Scheduler
from veltair.server.engine.block_history import BlockHistory
from veltair.server.engine.engine_status import LEVEL_NS, present_level
from veltair.server.ipc.status_records import BlockRecord
from veltair.types import Machine

NOW_NS = 10 * LEVEL_NS


def block(end_ns: int) -> BlockRecord:
    return BlockRecord(1, "mlp", 0, 3, (0, 0, 0), (0,), end_ns - 5, end_ns, conflict=False, level=5.1)


def level(source: str, ended_ns: int | None = None, of_running_ns: int | None = None) -> float | None:
    """What is published of a level of 5.1 after these blocks: the last one of a query that is done, and of another."""
    stats = replace(Scheduler(Machine(((0, 1),)), [], {}, "fcfs", workers=2).stats(), level=5.1, level_source=source)
    history = BlockHistory()
    if ended_ns is not None:
        history.add([block(ended_ns)])
    blocks = [] if of_running_ns is None else [block(of_running_ns)]
    queries: Any = SimpleNamespace(history=history, batches=lambda: [SimpleNamespace(blocks=blocks)])
    return present_level(stats, queries, NOW_NS)


def test_an_idle_machine_has_no_observed_slowdown() -> None:
    assert level("observed") is None
    assert level("observed", ended_ns=NOW_NS - LEVEL_NS) is None
    assert level("observed", ended_ns=NOW_NS - LEVEL_NS + 1) == 5.1


def test_a_long_query_says_by_its_blocks_what_it_meets() -> None:
    assert level("observed", ended_ns=0, of_running_ns=NOW_NS - 1) == 5.1
    assert level("observed", of_running_ns=NOW_NS - LEVEL_NS) is None


@pytest.mark.parametrize("source", ["counters", "predicted"])
def test_other_sources_know_of_now(source: str) -> None:
    assert level(source) == 5.1
