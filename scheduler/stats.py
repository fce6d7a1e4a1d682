"""What the metrics and the simulator read of a scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stats:
    """How it stands now, and totals since the start."""

    waiting: dict[str, int]  # by tenant: queries that have not started
    in_flight: int  # queries that hold a worker
    running: int  # blocks
    workers: int
    cores_in_use: int
    level: float
    level_source: str
    blocks_started: int
    conflicts: int  # blocks that started on fewer cores than they wanted
    blocks_grown: int  # growths that the workers took up
    capped_blocks: int  # blocks that could not hold their QoS share on the cores that they may use
