"""Worker processes: started, watched, replaced."""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Literal

from veltair.profiles.runtime.pinned_threads import kernel_environment
from veltair.server.ipc import worker_cell as cells
from veltair.server.ipc.channel import Channel, ClosedError, pair
from veltair.server.ipc.messages import FromWorker, Load
from veltair.server.ipc.worker_cell import Cell
from veltair.types import CoreSet

logger = logging.getLogger("veltair.engine")

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 30.0  # before a worker that died while it started is tried again


class WorkerProcess:
    """One child. It is `starting` until it has loaded every model, then `idle` or `busy` with one query.

    Raises OSError when the system has no room for another process.
    """

    def __init__(self, tensors: int, load: Load) -> None:
        ours, theirs = pair()
        fd = cells.create()
        inherited = (theirs.fileno(), fd, tensors)
        command = [sys.executable, "-P", "-m", "veltair.server.worker.worker", str(os.getpid()), *map(str, inherited)]
        try:
            self.process = subprocess.Popen(
                command,
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                stdout=2,  # the front's own output may be read by a program
                env=os.environ | kernel_environment(),
            )
        except OSError:
            ours.close()
            os.close(fd)
            raise
        finally:
            theirs.close()
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)  # readable once every thread of the process is gone
        self.cell = Cell(fd)
        os.close(fd)
        ours.setblocking(False)
        self.channel: Channel[FromWorker] = Channel(ours, FromWorker)
        self.state: Literal["starting", "idle", "busy"] = "starting"
        self.query: int | None = None
        self.alive = True
        self._core = -1  # where it sleeps, if known
        self.started_ns = time.monotonic_ns()
        with suppress(ClosedError):  # its end is then seen through the pidfd
            self.channel.send(load)

    def stand_on(self, cores: CoreSet) -> None:
        """Have it wake up on one of these cores. Where it slept last another block may run by now: it would wait there
        for its turn, milliseconds at times, before it could move by itself.
        """
        if self._core not in cores:
            self._core = cores[0]
            with suppress(ProcessLookupError):  # its pidfd tells next
                os.sched_setaffinity(self.pid, (self._core,))

    def close(self) -> int:
        """Reap it, killing it first if need be. Returns its exit code, negative for a signal."""
        self.process.kill()
        code = self.process.wait()
        self.channel.close()
        os.close(self.pidfd)
        return code


class Supervisor:
    """Keeps `target` worker processes alive. What is due when is asked by the engine's loop; nothing blocks."""

    def __init__(self, poll: select.epoll, target: int, tensors: int, load: Load) -> None:
        self.workers: dict[int, WorkerProcess] = {}  # by the descriptors of their socket and their pidfd
        self.deaths = 0
        self._poll = poll
        self._target = target
        self._arguments = (tensors, load)
        self._idle: list[WorkerProcess] = []  # the one used last comes first: its caches are warm
        self._living = 0
        self.failed_starts = 0  # in a row
        self._next_start_ns = 0

    @property
    def all(self) -> list[WorkerProcess]:
        return [worker for fd, worker in self.workers.items() if fd == worker.pidfd]

    @property
    def loaded(self) -> int:
        return sum(worker.alive and worker.state != "starting" for worker in self.all)

    def start_missing(self, now_ns: int) -> None:
        """Start as many as are missing, unless starts have failed lately."""
        while self._living < self._target and now_ns >= self._next_start_ns:
            try:
                worker = WorkerProcess(*self._arguments)
            except OSError as error:
                self._back_off(now_ns, f"a worker process cannot be started ({error})")
                return
            self._living += 1
            for fd in (worker.pidfd, worker.channel.fileno()):
                self.workers[fd] = worker
                self._poll.register(fd, select.EPOLLIN)

    def wait_s(self, now_ns: int) -> float | None:
        """Until a start is due; None when none is missing."""
        if self._living >= self._target:
            return None
        return max(0.0, (self._next_start_ns - now_ns) / 1e9)

    def loaded_one(self, worker: WorkerProcess) -> None:
        self.failed_starts = 0
        self.release(worker)

    def take(self, query: int) -> WorkerProcess | None:
        """An idle worker for this query to hold."""
        if not self._idle:
            return None
        worker = self._idle.pop()
        worker.state, worker.query = "busy", query
        return worker

    def release(self, worker: WorkerProcess) -> None:
        worker.state, worker.query = "idle", None
        if worker.alive:
            self._idle.append(worker)

    def condemn(self, worker: WorkerProcess) -> None:
        """It is dead or soon will be; no query gets it any more."""
        worker.alive = False
        if worker in self._idle:
            self._idle.remove(worker)

    def hung_up(self, worker: WorkerProcess) -> None:
        """It closed its socket: make sure that it dies; the pidfd then tells when all of it is gone."""
        self._poll.unregister(worker.channel.fileno())
        del self.workers[worker.channel.fileno()]
        worker.process.kill()

    def bury(self, worker: WorkerProcess, now_ns: int) -> str:
        """Its process is gone. Returns how it ended, in words."""
        for fd in (worker.pidfd, worker.channel.fileno()):
            if self.workers.pop(fd, None) is not None:
                self._poll.unregister(fd)
        ending = _in_words(worker.close())
        self._living -= 1
        self.deaths += 1
        if worker.state != "starting":
            logger.error("worker %d %s; another takes its place", worker.pid, ending)
            return ending
        self._back_off(now_ns, f"worker {worker.pid} {ending} before it was ready")
        return ending

    def _back_off(self, now_ns: int, what: str) -> None:
        delay_s = min(FIRST_DELAY_S * 2**self.failed_starts, LONGEST_DELAY_S)
        self.failed_starts += 1
        self._next_start_ns = now_ns + round(delay_s * 1e9)
        logger.error("%s; failed starts in a row: %d, next try in %.1f s", what, self.failed_starts, delay_s)

    def close(self) -> None:
        """End all of them at once: they hold nothing that outlives a query."""
        for worker in self.all:
            worker.close()
        self.workers.clear()
        self._idle.clear()


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
