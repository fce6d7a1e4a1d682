"""What engine and workers do to themselves when they start: die with their parent, leave signals to the front."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1


def tie_to_parent(parent: int) -> None:
    """Be killed when the parent's spawning thread ends; exit now when `parent` is gone already."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise SystemExit(1)


def leave_signals_to_front() -> None:
    """A terminal or service manager signals the whole group, but only the front decides when to end."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def set_nice(nice: int) -> None:
    """Where the system allows it."""
    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
