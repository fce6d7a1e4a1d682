"""How child processes start (their environment, what they do first: die with the parent, ignore signals, …) and end."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

from veltair.server.ipc.logs.json_lines import LOG_FORMAT, JsonLines

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the system kill this process when the thread that started it ends; exit now if `parent` is gone already.

    Raises OSError where the system refuses.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(1)


def ignore_termination_signals() -> None:
    """A terminal or service manager signals the whole process group, but only the front decides when to end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def let_others_first() -> None:
    """Run this thread only where no other thread wants the core, except for a three-hundredth of it."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def kill_and_reap(process: subprocess.Popen[bytes]) -> Thread:
    """Kill a child; the thread ends when it is gone. It needs a core for that, which one that lets others first may not
    get for seconds, and a file system that has gone may hold it beyond any signal."""
    process.kill()
    with suppress(PermissionError, ProcessLookupError):
        os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))
    reaper = Thread(target=process.wait, name=f"reap {process.pid}", daemon=True)
    reaper.start()
    return reaper


@contextmanager
def end_by_failure(what: str) -> Iterator[None]:
    """An exception of the block is logged and ends the process with exit code 1: at once, since what cleans up behind
    it may take long, and be killed meanwhile."""
    try:
        yield
    except Exception:
        logging.getLogger("veltair").exception(what)
        sys.exit(1)


def log_to_stderr(log_format: str | None = None) -> None:
    """Log as "text" or "json"; None: as the front has said, which starts this process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    if (log_format or os.environ.get(LOG_FORMAT)) == "json":
        os.environ[LOG_FORMAT] = "json"
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonLines())


def logs_json() -> bool:
    """Whether this process logs lines of JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def set_nice(nice: int) -> None:
    """Set this process's priority where the system allows it."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)


def children_environment() -> dict[str, str]:
    """The environment of engine and workers, which compute nothing with numpy: its threads would only take memory and
    cores, and a process that has some cannot be copied.
    """
    return os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
