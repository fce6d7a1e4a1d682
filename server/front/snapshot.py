"""`Snapshot`: the server at one moment, for metrics and dashboard."""

from __future__ import annotations

from dataclasses import dataclass

from veltair.server.ipc.messages import EngineStatus
from veltair.server.ipc.status_records import BlockRecord
from veltair.server.repository.model_memory import ModelMemory
from veltair.types import CoreSet


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The server now. The engine's counts restart from zero with its process; cursors go on.

    ::

        first = await client.snapshot(since=0)
        later = await client.snapshot(since=first.cursor)  # later.blocks ended in between
    """

    status: EngineStatus
    policy: str
    cores: CoreSet
    worker_target: int
    engine_pid: int
    engine_restarts: int
    held: int  # queries that hold a slot
    slots: int
    draining: bool
    blocks: tuple[BlockRecord, ...]  # of ended queries, oldest first; none unless asked for
    cursor: int  # pass it as `since` to get the blocks that follow
    memory: tuple[ModelMemory, ...] = ()  # of every version of every tenant
