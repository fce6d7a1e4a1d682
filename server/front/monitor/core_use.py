"""What cores did in the last second, and how blocks are told in few bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from veltair.server.front.recent_window import SECOND_NS
from veltair.server.ipc.status_records import BlockRecord, BlockStatus
from veltair.types import CoreSet

BUSY_SPAN_NS = SECOND_NS


def run_lengths(versions: Sequence[int]) -> list[tuple[int, int]]:
    """The versions of a block's layers as (version, layers).

    >>> run_lengths((0, 0, 2))
    [(0, 2), (2, 1)]
    """
    return [(version, len(list(group))) for version, group in groupby(versions)]


def busy_shares(
    ended: Iterable[BlockRecord], running: Iterable[BlockStatus], now_ns: int, cores: CoreSet
) -> dict[str, dict[str, float]]:
    """The share of the second up to `now_ns` that each core spent for each tenant: {core: {tenant: 0 … 1}}."""
    start_ns = now_ns - BUSY_SPAN_NS
    spent: dict[int, Counter[str]] = {core: Counter() for core in cores}

    def add(tenant: str, on: CoreSet, begin_ns: int, end_ns: int) -> None:
        inside = min(end_ns, now_ns) - max(begin_ns, start_ns)
        if inside > 0:
            for core in on:
                if core in spent:
                    spent[core][tenant] += inside

    for block in ended:
        if block.end_ns <= start_ns:
            continue
        begin_ns, on = block.begin_ns, block.cores
        for change in block.core_changes:
            add(block.tenant, on, begin_ns, change.time_ns)
            begin_ns, on = change.time_ns, change.cores
        add(block.tenant, on, begin_ns, block.end_ns)
    for live in running:
        add(live.tenant, live.cores, live.since_ns, now_ns)
    return {str(core): {t: round(ns / BUSY_SPAN_NS, 4) for t, ns in by.items()} for core, by in spent.items()}


def packed_block(b: BlockRecord) -> list[Any]:
    """Compact, as a frame holds hundreds. Times are ms of the monotonic clock."""
    times = b.begin_ns / 1e6, b.end_ns / 1e6
    core_changes = [[change.time_ns / 1e6, change.cores] for change in b.core_changes]
    block = [b.tenant, b.query, b.start, b.stop, *times, b.cores]
    return [*block, b.conflict, b.level, run_lengths(b.versions), core_changes, b.queries]
