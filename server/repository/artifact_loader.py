"""The artifact loader: a process that checks artifacts, copies them into sealed memory and keeps their weights there.

To read, digest, copy and lock a gigabyte takes a second of a core. Here that disturbs neither front nor engine, which
have other things to do with their locks, and once the daemon serves it has what others leave of a core. Descriptors of
what it has sealed go to the front, and from there to engine and workers: none of them needs the folder, and what they
have outlives this process.
The front starts it as `python -m veltair.server.repository.artifact_loader PARENT SOCKET`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import TypeAlias

from veltair.errors import ArtifactError, VeltairError
from veltair.machine.load_pace import LoadPace, PacedLoad, WorkerTimes, children_of
from veltair.machine.standstill import Standstill
from veltair.profiles.artifact.sealed_artifact import SealedArtifact, SealedFiles, open_sealed, seal_artifact
from veltair.profiles.runtime.locked_memory import locked_in_memory
from veltair.server.ipc.channel import Channel, ChannelClosedError, socket_pair
from veltair.server.ipc.logs.line_writer import log_promptly
from veltair.server.ipc.messages import Message
from veltair.server.ipc.process_setup import (
    die_with_parent,
    ignore_termination_signals,
    kill_and_reap,
    let_others_first,
)

_log = logging.getLogger("veltair.server")

LOOK_S = 0.5  # between two looks at a process that has a question to answer
END_S = 1.0  # for a killed process to go, where somebody waits for it


class HoldArtifacts(Message, frozen=True):
    """The first message: hold what a process before this one has sealed, and left to this one by inheritance.

    >>> HoldArtifacts({"ab12": SealedFiles(7, 8, 9)}).artifacts["ab12"].weights
    9
    """

    artifacts: dict[str, SealedFiles]  # by digest


class LoadArtifact(Message, frozen=True):
    """Check and seal it, and hold its weights: `LoadArtifact("/srv/resnet50")`. `ArtifactLoaded` or `ArtifactRefused`
    follows."""

    path: str


class ReleaseArtifact(Message, frozen=True):
    """Hold its weights no longer: `ReleaseArtifact("ab12")`."""

    digest: str


class StandBack(Message, frozen=True):
    """Others come first from here on: `StandBack(share=0.1)`."""

    share: float  # of a core, while workers compute


class ArtifactLoaded(Message, frozen=True):
    """It is as its digests say: `ArtifactLoaded("ab12")`. The descriptors of its `SealedFiles` come along."""

    digest: str


class ArtifactRefused(Message, frozen=True):
    """It cannot be served: `ArtifactRefused("/srv/resnet50: no model artifact there")`."""

    reason: str


ToLoader: TypeAlias = HoldArtifacts | LoadArtifact | ReleaseArtifact | StandBack
FromLoader: TypeAlias = ArtifactLoaded | ArtifactRefused


class ArtifactLoader:
    """The front's end, which counts how often each artifact is used.

    Loads one at a time; a process that died, or hung, is started again by the next load, and holds what the one before
    it held.

    Create it in the main thread: the process ends with the thread that started it. ::

        loader = ArtifactLoader(hung_s=5.0)
        artifact = await loader.load(path)
        await loader.release(artifact)
        loader.close()
    """

    def __init__(self, hung_s: float, share: float = 1.0) -> None:
        """`hung_s`: a process that has something to do and does nothing for so long is killed. `share`: what it may
        take of a core while workers compute, once it stands back."""
        self._hung_ns, self._share = round(hung_s * 1e9), share
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromLoader] | None = None
        self._one_at_a_time = asyncio.Lock()
        self._stands_back = False
        self._open: dict[str, SealedArtifact] = {}  # by digest
        self._uses: Counter[str] = Counter()  # of each

    async def load(self, path: Path) -> SealedArtifact:
        """The artifact, open until it has been released as often as it was loaded.

        Raises ArtifactError for one that is missing, altered or inconsistent, or that others may write.
        """
        async with self._one_at_a_time:
            try:
                channel = self._running()
            except OSError as error:
                raise ArtifactError(f"{path}: the process that checks it cannot start: {error.strerror}") from None
            try:
                channel.send(LoadArtifact(str(path)))
                answer = await self._answer(channel)
            except ChannelClosedError:
                self._end_process()
                raise ArtifactError(f"{path}: the process that checks it has ended; try again") from None
            if isinstance(answer, ArtifactLoaded):
                return self._use(path, answer.digest, channel)
        raise ArtifactError(answer.reason if answer else f"{path}: not checked")

    async def release(self, artifact: SealedArtifact) -> None:
        """One use less; after the last, it may leave memory."""
        async with self._one_at_a_time:
            digest = artifact.digest
            self._uses[digest] -= 1
            if self._uses[digest]:
                return
            del self._uses[digest]
            self._open.pop(digest).files.close()
            if self._channel is not None:
                try:
                    self._channel.send(ReleaseArtifact(digest))
                except ChannelClosedError:
                    self._end_process()

    def stand_back(self) -> None:
        """The daemon serves from here on: queries come first."""
        self._stands_back = True
        if self._channel is not None:
            with suppress(ChannelClosedError):  # the next load starts another process
                self._channel.send(StandBack(self._share))

    def close(self) -> None:
        """End the process, and close all artifacts."""
        if (reaper := self._end_process()) is not None:
            reaper.join(END_S)
        for artifact in self._open.values():
            artifact.files.close()
        self._open.clear()
        self._uses.clear()

    async def _answer(self, channel: Channel[FromLoader]) -> FromLoader | None:
        receiving = asyncio.ensure_future(asyncio.to_thread(channel.receive))
        assert self._process is not None
        standstill = Standstill(self._process.pid)
        try:
            while not (await asyncio.wait([receiving], timeout=LOOK_S))[0]:
                if standstill.lasted_ns(time.monotonic_ns()) > self._hung_ns:
                    _log.error("the artifact loader %d does nothing and is killed", self._process.pid)
                    self._process.kill()
            return await receiving
        except asyncio.CancelledError:  # what it would answer is not the answer to the next question
            if self._process is not None:
                self._process.kill()
            await asyncio.gather(receiving, return_exceptions=True)
            self._end_process()
            raise

    def _use(self, path: Path, digest: str, channel: Channel[FromLoader]) -> SealedArtifact:
        if digest in self._open:
            channel.drop_descriptors()  # of the same files, which would stay in memory when all others let go
        else:
            try:
                self._open[digest] = open_sealed(path, digest, channel.take_descriptors())
            except ArtifactError:
                with suppress(ChannelClosedError):  # the next load starts another process
                    channel.send(ReleaseArtifact(digest))
                raise
        self._uses[digest] += 1
        return self._open[digest]

    def _end_process(self) -> Thread | None:
        process, channel, self._process, self._channel = self._process, self._channel, None, None
        if process is None or channel is None:
            return None
        channel.close()
        return kill_and_reap(process)

    def _running(self) -> Channel[FromLoader]:
        if self._process is not None and self._process.poll() is not None:  # it died with nothing to do
            self._end_process()
        if self._channel is None:
            ours, theirs = socket_pair()
            command = [sys.executable, "-P", "-m", __name__, str(os.getpid()), str(theirs.fileno())]
            held = {digest: artifact.files for digest, artifact in self._open.items()}
            inherited = (theirs.fileno(), *chain.from_iterable(held.values()))
            try:
                self._process = subprocess.Popen(command, pass_fds=inherited, stdin=subprocess.DEVNULL, stdout=2)
            finally:
                theirs.close()
            self._channel = Channel(ours, FromLoader)
            self._channel.send(HoldArtifacts(held))
            if self._stands_back:
                self._channel.send(StandBack(self._share))
        return self._channel


class HeldArtifacts:
    """What the process holds, by digest.

    ::

        held = HeldArtifacts()
        held.load(path).files  # to be sent to the front
        held.release(digest)
    """

    def __init__(self) -> None:
        self._files: dict[str, SealedFiles] = {}
        self._held: dict[str, ExitStack] = {}
        self.pause: Callable[[], None] | None = None  # between pieces of work

    def load(self, path: Path) -> SealedArtifact:
        """Raises ArtifactError or OSError."""
        artifact = seal_artifact(path, self._files, self.pause)
        if artifact.digest not in self._files:
            self.hold(artifact.digest, artifact.files, str(path))
        return artifact

    def hold(self, digest: str, files: SealedFiles, what: str) -> None:
        """Takes the descriptors over. `what`: its name in the log."""
        with ExitStack() as stack:
            stack.callback(files.close)
            stack.enter_context(locked_in_memory(files.weights, what, self.pause))
            self._files[digest], self._held[digest] = files, stack.pop_all()

    def release(self, digest: str) -> None:
        if digest in self._files:
            del self._files[digest]
            self._held.pop(digest).close()


def main(arguments: Sequence[str]) -> int:
    """Run the process. Returns its exit code."""
    parent, sock = map(int, arguments)
    die_with_parent(parent)
    ignore_termination_signals()
    log_promptly()
    channel: Channel[ToLoader] = Channel(socket.socket(fileno=sock), ToLoader)
    held = HeldArtifacts()
    try:
        while True:
            match channel.receive():
                case HoldArtifacts(artifacts=artifacts):
                    for digest, files in artifacts.items():
                        held.hold(digest, files, digest[:12])
                case LoadArtifact(path=path):
                    _load(channel, held, Path(path))
                case ReleaseArtifact(digest=digest):
                    held.release(digest)
                case StandBack(share=share):
                    let_others_first()
                    held.pause = PacedLoad(LoadPace(share), WorkerTimes(lambda: children_of(parent))).pause
    except ChannelClosedError:
        return 0


def _load(channel: Channel[ToLoader], held: HeldArtifacts, path: Path) -> None:
    try:
        artifact = held.load(path)
    except VeltairError as error:
        channel.send(ArtifactRefused(str(error)))
    except OSError as error:
        channel.send(ArtifactRefused(f"{path}: {error.strerror}"))
    else:
        if artifact.manifest.answer is None:
            _log.warning("%s holds no answer: whether it computes what it should, nobody knows; compile it again", path)
        channel.send(ArtifactLoaded(artifact.digest), artifact.files)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
