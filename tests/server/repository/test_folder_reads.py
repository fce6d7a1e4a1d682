"""Reads of folders that answer, fail, or never return."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from veltair.errors import ArtifactError, OverloadedError
from veltair.server.repository.folder_reads import FolderReads


def test_what_a_read_returns_and_raises() -> None:
    async def main() -> None:
        reads = FolderReads()
        assert await reads.run(lambda number: number + 1, 2) == 3
        with pytest.raises(FileNotFoundError):
            await reads.run(Path("/none").stat)

    asyncio.run(main())


def test_nobody_waits_for_what_never_returns() -> None:
    """Neither who asks, nor at the end of the loop whoever started it."""
    mended = threading.Event()

    async def main() -> None:
        with pytest.raises(ArtifactError, match=r"the file system has not answered for 0\.01 s"):
            await FolderReads(patience_s=0.01).run(mended.wait)
        reads = FolderReads()
        waiting = asyncio.create_task(reads.run(mended.wait))
        while not reads._waiting:
            await asyncio.sleep(0)
        reads.close()
        with pytest.raises(OverloadedError):
            await waiting
        with pytest.raises(OverloadedError):
            await reads.run(mended.wait)

    asyncio.run(main())
    mended.set()
