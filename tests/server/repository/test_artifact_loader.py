"""The process that checks artifacts and holds their weights."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from model_versions import broken

from veltair.errors import ArtifactError
from veltair.server.repository.artifact_loader import ArtifactLoader

pytestmark = pytest.mark.slow


def locked_kb(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmLck")]
    return int(line.split()[1])


def test_an_artifact_is_checked_and_held_as_often_as_it_was_loaded(artifacts: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        loader = ArtifactLoader()
        try:
            first, second = await loader.load(artifacts / "mlp"), await loader.load(artifacts / "mlp")
            assert first.digest == second.digest
            assert first.manifest.model == "mlp"
            for how, says in (
                ("no library", "No such file"),
                ("flipped byte", "altered"),
                ("torn manifest", "manifest"),
            ):
                with pytest.raises(ArtifactError, match=says):
                    await loader.load(broken(artifacts, tmp_path / how, how))
            assert loader._process is not None
            pid = loader._process.pid
            held = locked_kb(pid)
            await loader.release(first)
            await loader.load(artifacts / "spin")  # answered after the release
            assert locked_kb(pid) == held
            await loader.release(second)
            await loader.load(artifacts / "spin")
            assert locked_kb(pid) < held or held == 0  # 0: the system locks nothing for this user
        finally:
            loader.close()

    asyncio.run(scenario())


def test_a_loader_that_was_killed_comes_back_with_the_next_load(artifacts: Path) -> None:
    async def scenario() -> None:
        loader = ArtifactLoader()
        try:
            await loader.load(artifacts / "mlp")
            loader.stand_back()
            assert loader._process is not None
            before = loader._process
            os.kill(before.pid, signal.SIGKILL)
            before.wait()
            with pytest.raises(ArtifactError, match="has ended; try again"):
                await loader.load(artifacts / "mlp")
            artifact = await loader.load(artifacts / "mlp")
            assert os.sched_getscheduler(loader._process.pid) == os.SCHED_IDLE  # others still come first
            await loader.release(artifact)
        finally:
            loader.close()

    asyncio.run(scenario())
