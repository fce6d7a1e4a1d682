"""The process that checks artifacts, seals them and holds their weights."""

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest
from model_versions import altered, broken

from veltair.errors import ArtifactError
from veltair.profiles.artifact.artifact_folder import WEIGHTS
from veltair.server.repository.artifact_loader import ArtifactLoader

pytestmark = pytest.mark.slow


def locked_kb(pid: int) -> int:
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmLck")]
    return int(line.split()[1])


def open_copies(what: str) -> int:
    """Descriptors of sealed copies of such files in this process."""
    found = [str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
    return sum(link.startswith(f"/memfd:veltair-{what}") for link in found)


def test_an_artifact_is_checked_and_held_as_often_as_it_was_loaded(artifacts: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        loader = ArtifactLoader(hung_s=60.0)
        try:
            first, second = await loader.load(artifacts / "mlp"), await loader.load(artifacts / "mlp")
            assert first.digest == second.digest
            assert first.manifest.model == "mlp"
            assert open_copies("manifest") == 1  # of the second load nothing stays
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
        loader = ArtifactLoader(hung_s=60.0)
        try:
            await loader.load(artifacts / "mlp")
            loader.stand_back()
            assert loader._process is not None
            before = loader._process
            os.kill(before.pid, signal.SIGKILL)
            before.wait()
            artifact = await loader.load(artifacts / "mlp")
            assert os.sched_getscheduler(loader._process.pid) == os.SCHED_IDLE  # others still come first
            await loader.release(artifact)
        finally:
            loader.close()

    asyncio.run(scenario())


def test_an_artifact_without_an_answer_is_held_and_the_log_says_so(
    artifacts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def scenario() -> None:
        loader = ArtifactLoader(hung_s=60.0)
        try:
            await loader.load(artifacts / "mlp")
            assert capfd.readouterr().err == ""
            await loader.load(altered(artifacts / "mlp", tmp_path / "old", answer=None))
            assert "old holds no answer" in capfd.readouterr().err
        finally:
            loader.close()

    asyncio.run(scenario())


def test_models_with_one_digest_share_memory_and_the_last_closes_it(artifacts: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        shutil.copytree(artifacts / "mlp", tmp_path / "copy")
        loader = ArtifactLoader(hung_s=60.0)
        try:
            await loader.release(await loader.load(artifacts / "mlp"))
            assert loader._process is not None
            pid, sizes = loader._process.pid, []
            for _ in range(5):
                first, second = await loader.load(artifacts / "mlp"), await loader.load(tmp_path / "copy")
                assert first is second
                await loader.release(first)
                os.fstat(second.files.weights)
                await loader.release(second)
                with pytest.raises(ArtifactError):
                    await loader.load(broken(artifacts, tmp_path / f"broken{len(sizes)}", "flipped byte"))
                sizes.append((descriptors(os.getpid()), descriptors(pid), memory_of_artifacts(pid)))
            assert len(set(sizes)) == 1
            assert sizes[0][2] == 0
        finally:
            loader.close()

    asyncio.run(scenario())


def test_what_is_open_outlives_the_process_and_is_held_by_the_next(artifacts: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        before = descriptors(os.getpid())
        shutil.copytree(artifacts / "mlp", tmp_path / "mlp")
        content = (tmp_path / "mlp" / WEIGHTS).read_bytes()
        loader = ArtifactLoader(hung_s=60.0)
        try:
            artifact = await loader.load(tmp_path / "mlp")
            await loader.load(artifacts / "spin")
            assert loader._process is not None
            held = locked_kb(loader._process.pid)
            shutil.rmtree(tmp_path / "mlp")
            loader._process.kill()
            loader._process.wait()
            assert os.pread(artifact.files.weights, len(content) + 1, 0) == content
            again = await loader.load(artifacts / "spin")
            assert locked_kb(loader._process.pid) == held
            assert (await loader.load(artifacts / "mlp")) is artifact  # with its memory, not with a copy
            pid, count = loader._process.pid, descriptors(loader._process.pid)
            for _ in range(2):
                await loader.release(artifact)
            await loader.release(again)
            await loader.load(artifacts / "spin")  # answered after the releases
            assert descriptors(pid) == count - 3  # mlp's
        finally:
            loader.close()
        assert descriptors(os.getpid()) == before

    asyncio.run(scenario())


def test_an_answer_that_nobody_waits_for_is_not_taken_for_the_next(artifacts: Path) -> None:
    async def scenario() -> None:
        before = descriptors(os.getpid())
        loader = ArtifactLoader(hung_s=60.0)
        try:
            await loader.release(await loader.load(artifacts / "spin"))
            assert loader._process is not None
            process = loader._process
            process.send_signal(signal.SIGSTOP)
            loading = asyncio.create_task(loader.load(artifacts / "spin"))
            await asyncio.sleep(0)  # it has asked
            await asyncio.sleep(0)
            loading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await loading
            process.send_signal(signal.SIGCONT)  # unless it is gone
            assert (await loader.load(artifacts / "mlp")).manifest.model == "mlp"
        finally:
            loader.close()
        assert descriptors(os.getpid()) == before

    asyncio.run(scenario())


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def memory_of_artifacts(pid: int) -> int:
    """Mappings of sealed files."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:veltair-")
