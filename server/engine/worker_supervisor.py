"""`WorkerSupervisor`: starts, watches and replaces the worker processes."""

from __future__ import annotations

import logging
import os
import select
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import msgspec

from veltair.machine.standstill import Standstill, is_stopped
from veltair.profiles.artifact.sealed_artifact import SealedFiles
from veltair.server.engine.worker_process import WorkerProcess, WorkerSetup
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.messages import LoadModels, ModelChange, TenantSpec, WorkerDied
from veltair.server.ipc.status_records import SandboxStatus

logger = logging.getLogger("veltair.engine")

FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 30.0  # before a worker that died while it started is tried again
FORK_SERVER_LOOK_NS = 10_000_000  # between two looks at a fork server that is still importing
LOOK_NS = 500_000_000  # between two looks at a worker that loads models: it may hang


class WorkerSupervisor:
    """Keeps `target` worker processes alive and knows which are idle.

    The engine's loop asks it what is due; no method blocks::

        supervisor.start_missing(time.monotonic_ns())
        worker = supervisor.acquire(query)  # None when none is idle
        supervisor.release(worker)
    """

    def __init__(
        self,
        poll: select.epoll,
        target: int,
        tensors: int,
        load: LoadModels,
        cell_bytes: int,
        hung_ns: int,
        forks: ForkServer,
        tell: Callable[[WorkerDied], None] = lambda died: None,
    ) -> None:
        """Registers each worker's socket and pidfd in `poll`, and the bell that all of them ring when a block has
        ended. `tensors`: the descriptor of the tensor pool. `hung_ns`: a worker that loads models and does nothing for
        so long is replaced. `forks` makes the workers. `tell`: hears of each worker that dies."""
        self.bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        poll.register(self.bell, select.EPOLLIN | select.EPOLLET)  # each write tells; nobody reads it
        self.workers: dict[int, WorkerProcess] = {}  # by the descriptors of their socket and their pidfd
        self.deaths = 0
        self.sandbox = SandboxStatus()  # of the worker that started last
        self._poll, self._tell = poll, tell
        self._target = target
        self._setup = WorkerSetup(load, tensors, self.bell, cell_bytes)
        self._idle: list[WorkerProcess] = []  # the one used last is taken first: its caches are warm
        self._living = 0
        self.failed_starts = 0  # in a row
        self._next_start_ns = 0
        self._hung_ns = hung_ns
        self._forks = forks
        self.failure = ""  # of the last start that failed, in words
        self._next_look_ns = 0
        self._loading: dict[WorkerProcess, Standstill] = {}
        self._stopped_ns: dict[WorkerProcess, int] = {}  # of workers that wait, since when

    @property
    def all(self) -> list[WorkerProcess]:
        return [worker for fd, worker in self.workers.items() if fd == worker.pidfd]

    @property
    def loaded(self) -> int:
        """Number of live workers that take queries, or have one, or may get one from an I/O thread."""
        return sum(worker.alive and worker.state in ("idle", "busy", "attending") for worker in self.all)

    @property
    def complete(self) -> bool:
        """Whether there are as many of them as there should be."""
        return self.loaded >= self._target

    @property
    def idle(self) -> Sequence[WorkerProcess]:
        """Those that wait for a query, the one that has waited longest first."""
        return self._idle

    @property
    def cell_bytes(self) -> int:
        return self._setup.cell_bytes

    def serve(self, tenants: Sequence[TenantSpec], artifacts: Mapping[str, SealedFiles]) -> None:
        """Workers that start from here on load these models, whose artifacts, by digest, stay open until the next
        call."""
        load = msgspec.structs.replace(self._setup.load, tenants=tuple(tenants), artifacts=dict(artifacts))
        self._setup = replace(self._setup, load=load)

    def change(self, worker: WorkerProcess, change: ModelChange, descriptors: Sequence[int]) -> None:
        """Have an idle worker change its models; it takes no query meanwhile. `descriptors`: of what it is to load."""
        self._idle.remove(worker)
        worker.state = "changing"
        worker.change_models(change, descriptors)

    def start_missing(self, now_ns: int) -> None:
        """Start the workers that are missing, unless the last starts failed and the next try is not due."""
        self._kill_hung(now_ns)
        while self._living < self._target and now_ns >= self._next_start_ns:
            try:
                if not self._forks.is_ready():
                    self._next_start_ns = now_ns + FORK_SERVER_LOOK_NS
                    return
                worker = WorkerProcess(self._setup, self._forks)
            except (OSError, MemoryError) as error:
                self._back_off(now_ns, f"a worker process cannot be started ({error})")
                return
            self._living += 1
            for fd in (worker.pidfd, worker.channel.fileno()):
                self.workers[fd] = worker
                self._poll.register(fd, select.EPOLLIN)

    def seconds_to_start(self, now_ns: int) -> float | None:
        """The time until a start is due, or a look at those that load; None when no worker is missing or loads."""
        due_ns = []
        if self._living < self._target:
            due_ns.append(self._next_start_ns)
        if self._loading:
            due_ns.append(self._next_look_ns)
        return max(0.0, (min(due_ns) - now_ns) / 1e9) if due_ns else None

    def _kill_hung(self, now_ns: int) -> None:
        """Workers that load models and stand still, and those that wait and somebody has stopped."""
        if now_ns < self._next_look_ns:
            return
        self._next_look_ns = now_ns + LOOK_NS
        loading = [worker for worker in self.all if worker.state in ("starting", "changing")]
        self._loading = {worker: self._loading.get(worker) or Standstill(worker.pid) for worker in loading}
        for worker, standstill in self._loading.items():
            if standstill.lasted_ns(now_ns) > self._hung_ns:
                self.kill_hung(worker, "loading models")
        attending = [worker for worker in self.all if worker.state == "attending"]
        stopped = [worker for worker in (*self._idle, *attending) if is_stopped(worker.pid)]
        self._stopped_ns = {worker: self._stopped_ns.get(worker, now_ns) for worker in stopped}
        for worker, since_ns in self._stopped_ns.items():
            if now_ns - since_ns > self._hung_ns:
                self.kill_hung(worker, "waiting while it is stopped")

    def models_loaded(self, worker: WorkerProcess, sandbox: SandboxStatus) -> None:
        """The worker can take its first query."""
        self.failed_starts = 0
        if sandbox != self.sandbox:
            self.sandbox = sandbox
            _log_sandbox(sandbox)
        self.release(worker)

    def acquire(self, query: int) -> WorkerProcess | None:
        """An idle worker, which now holds this query; None when none is idle."""
        if not self._idle:
            return None
        worker = self._idle.pop()
        worker.state, worker.query = "busy", query
        return worker

    def hold(self, worker: WorkerProcess, query: int) -> None:
        """The worker, which attends, holds this query."""
        worker.state, worker.query = "busy", query

    def lend(self) -> WorkerProcess | None:
        """An idle worker, which attends to what I/O threads order from here on; None when none is idle."""
        if not self._idle:
            return None
        worker = self._idle.pop()
        worker.state = "attending"
        return worker

    def release(self, worker: WorkerProcess) -> None:
        """The worker holds no query any more, and attends to nobody."""
        worker.state, worker.query = "idle", None
        if worker.alive:
            self._idle.append(worker)

    def mark_dead(self, worker: WorkerProcess) -> None:
        """The worker is dead or soon will be: it gets no further query."""
        worker.alive = False
        if worker in self._idle:
            self._idle.remove(worker)

    def kill_disconnected(self, worker: WorkerProcess) -> None:
        """Kill a worker that closed its socket; its pidfd reports when the whole process is gone."""
        self._poll.unregister(worker.channel.fileno())
        del self.workers[worker.channel.fileno()]
        worker.kill()

    def kill_hung(self, worker: WorkerProcess, doing: str) -> None:
        """Kill a worker that does not end what it is `doing`; its pidfd reports when the process is gone."""
        self._kill(worker, f"{doing} takes far too long", "what it did took far too long")

    def kill_broken(self, worker: WorkerProcess, what: str) -> None:
        """Kill a worker that wrote or said `what` no worker does."""
        self._kill(worker, f"it told nonsense ({what})", "it told nonsense")

    def _kill(self, worker: WorkerProcess, why: str, shown: str) -> None:
        if not worker.killed_for:
            logger.error("worker %d: %s, and the process is killed", worker.pid, why)
            worker.killed_for = shown
            worker.kill()

    def reap(self, worker: WorkerProcess, now_ns: int) -> str:
        """Forget a worker whose process is gone. Returns how it ended, in words."""
        for fd in (worker.pidfd, worker.channel.fileno()):
            if self.workers.pop(fd, None) is not None:
                self._poll.unregister(fd)
        ending = _describe_exit(worker.close())
        self._living -= 1
        self.deaths += 1
        doing = {"starting": " before it was ready", "busy": " while it ran a query", "changing": " over its models"}
        why = f" ({worker.killed_for})" if worker.killed_for else ""
        self._tell(WorkerDied(worker.pid, f"{ending}{doing.get(worker.state, '')}{why}"))
        if worker.state != "starting":
            logger.error("worker %d %s; another takes its place", worker.pid, ending)
            return ending
        self._back_off(now_ns, f"worker {worker.pid} {ending} before it was ready")
        return ending

    def _back_off(self, now_ns: int, what: str) -> None:
        self.failure = what
        delay_s = min(FIRST_DELAY_S * 2**self.failed_starts, LONGEST_DELAY_S)
        self.failed_starts += 1
        self._next_start_ns = now_ns + round(delay_s * 1e9)
        logger.error("%s; failed starts in a row: %d, next try in %.1f s", what, self.failed_starts, delay_s)

    def close(self) -> None:
        """End all workers at once, which hold nothing that outlives a query, and what they are made by."""
        self._forks.close()
        workers = self.all
        for worker in workers:  # they end side by side: one that stood back needs a core for that
            worker.kill()
        for worker in workers:
            worker.close()
        self.workers.clear()
        self._idle.clear()
        self._poll.unregister(self.bell)
        os.close(self.bell)


def _log_sandbox(sandbox: SandboxStatus) -> None:
    if sandbox.gaps:
        logger.warning("workers are not confined as they could be: %s", "; ".join(sandbox.gaps))
    else:
        logger.info("workers are confined by Landlock (ABI %d) and a seccomp filter", sandbox.landlock_abi)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
