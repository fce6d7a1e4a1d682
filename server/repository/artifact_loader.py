"""The artifact loader: a process that checks artifacts and holds their weights in memory.

To read, digest and lock a gigabyte takes a second of a core. Here that disturbs neither front nor engine, which have
other things to do with their locks, and once the daemon serves it has what others leave of a core.
The front starts it as `python -m veltair.server.repository.artifact_loader PARENT SOCKET`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeAlias

from veltair.errors import ArtifactError, VeltairError
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.runtime.huge_pages import ENOUGH, WORTH_BYTES, move_to_huge_pages
from veltair.profiles.runtime.locked_memory import locked_in_memory
from veltair.server.ipc.channel import Channel, ChannelClosedError, socket_pair
from veltair.server.ipc.messages import Message
from veltair.server.ipc.process_setup import die_with_parent, ignore_termination_signals, let_others_first
from veltair.server.ipc.tenant_artifact import open_artifact_folder


class LoadArtifact(Message, frozen=True):
    """Check it and hold its weights: `LoadArtifact("/srv/resnet50")`. `ArtifactLoaded` or `ArtifactRefused` follows."""

    path: str


class ReleaseArtifact(Message, frozen=True):
    """Hold its weights no longer, unless it was loaded more often: `ReleaseArtifact("/srv/resnet50", "ab12")`."""

    path: str
    digest: str


class StandBack(Message, frozen=True):
    """Others come first from here on: `StandBack()`."""


class ArtifactLoaded(Message, frozen=True):
    """It is as its digests say: `ArtifactLoaded("ab12")`."""

    digest: str


class ArtifactRefused(Message, frozen=True):
    """It cannot be served: `ArtifactRefused("/srv/resnet50: no model artifact there")`."""

    reason: str


ToLoader: TypeAlias = LoadArtifact | ReleaseArtifact | StandBack
FromLoader: TypeAlias = ArtifactLoaded | ArtifactRefused


class ArtifactLoader:
    """The front's end. Loads one artifact at a time; a process that died is started again by the next load.

    Create it in the main thread: the process ends with the thread that started it. ::

        loader = ArtifactLoader()
        artifact = await loader.load(path)
        await loader.release(artifact)
        loader.close()
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromLoader] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._stands_back = False

    async def load(self, path: Path) -> Artifact:
        """Raises ArtifactError for one that is missing, altered or inconsistent."""
        async with self._one_at_a_time:
            channel = self._running()
            try:
                channel.send(LoadArtifact(str(path)))
                answer = await asyncio.to_thread(channel.receive)
            except ChannelClosedError:
                self.close()
                raise ArtifactError(f"{path}: the process that checks it has ended; try again") from None
        if isinstance(answer, ArtifactLoaded):
            return open_artifact_folder(path, answer.digest)
        raise ArtifactError(answer.reason if answer else f"{path}: not checked")

    async def release(self, artifact: Artifact) -> None:
        """Its weights may leave memory."""
        async with self._one_at_a_time:
            if self._channel is not None:
                try:
                    self._channel.send(ReleaseArtifact(str(artifact.path), artifact.digest))
                except ChannelClosedError:
                    self.close()

    def stand_back(self) -> None:
        """The daemon serves from here on: queries come first."""
        self._stands_back = True
        if self._channel is not None:
            with suppress(ChannelClosedError):  # the next load starts another process
                self._channel.send(StandBack())

    def close(self) -> None:
        """End the process. What it holds may leave memory."""
        if self._process is not None and self._channel is not None:
            self._process.kill()
            self._process.wait()
            self._channel.close()
        self._process = self._channel = None

    def _running(self) -> Channel[FromLoader]:
        if self._channel is None:
            ours, theirs = socket_pair()
            command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(theirs.fileno())]
            try:
                self._process = subprocess.Popen(
                    command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=2
                )
            finally:
                theirs.close()
            self._channel = Channel(ours, FromLoader)
            if self._stands_back:
                self._channel.send(StandBack())
        return self._channel


class HeldArtifacts:
    """What the process holds.

    ::

        held = HeldArtifacts()
        held.load(path)  # ArtifactLoaded
        held.release(path, digest)
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[int, ExitStack]] = {}  # how often, by path and digest
        self._small_pages: set[int] = set()  # devices whose files do not come in large pages

    def load(self, path: str) -> FromLoader:
        try:
            artifact = load_artifact(Path(path))
        except VeltairError as error:
            return ArtifactRefused(str(error))
        except OSError as error:
            return ArtifactRefused(f"{path}: {error.strerror}")
        key = path, artifact.digest
        if key in self._held:
            count, stack = self._held[key]
        else:
            count, stack = 0, ExitStack()
            device = artifact.weights.stat().st_dev
            large = artifact.weights.stat().st_size >= WORTH_BYTES
            if large and device not in self._small_pages and move_to_huge_pages(artifact.weights) < ENOUGH:
                self._small_pages.add(device)  # to read files there a second time is of no use
            stack.enter_context(locked_in_memory(artifact.weights))
        self._held[key] = count + 1, stack
        return ArtifactLoaded(artifact.digest)

    def release(self, path: str, digest: str) -> None:
        count, stack = self._held.pop((path, digest), (0, ExitStack()))
        if count > 1:
            self._held[path, digest] = count - 1, stack
        else:
            stack.close()


def main(arguments: Sequence[str]) -> int:
    """Run the process. Returns its exit code."""
    parent, sock = map(int, arguments)
    die_with_parent(parent)
    ignore_termination_signals()
    channel: Channel[ToLoader] = Channel(socket.socket(fileno=sock), ToLoader)
    held = HeldArtifacts()
    try:
        while True:
            match channel.receive():
                case LoadArtifact(path=path):
                    channel.send(held.load(path))
                case ReleaseArtifact(path=path, digest=digest):
                    held.release(path, digest)
                case StandBack():
                    let_others_first()
    except ChannelClosedError:
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
