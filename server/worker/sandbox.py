"""The sandbox of a worker: what it cannot do any more once it may run the code of artifacts.

    python -m veltair.server.worker.sandbox

says as JSON what this kernel gives, as `veltair doctor` does: it confines itself, and prints its `SandboxStatus`.
"""

from __future__ import annotations

import ctypes
import os

import msgspec

from veltair.config import SandboxMode
from veltair.errors import ConfigError
from veltair.server.ipc.status_records import SandboxStatus
from veltair.server.worker import landlock, seccomp

_PR_SET_NO_NEW_PRIVS = 38  # linux/prctl.h


def confine(mode: SandboxMode) -> SandboxStatus:
    """Confine this process for good, as far as the kernel allows. Call it before the first thread starts.

    Raises ConfigError where the mode is "require" and something is missing.
    """
    if mode == "off":
        return SandboxStatus(gaps=("server.sandbox is off",))
    abi, filtered, gaps = 0, False, []
    try:
        no_new_privileges()
        abi = landlock.restrict()
    except OSError as error:
        gaps.append(f"no Landlock: {error.strerror}")
    try:
        seccomp.install(seccomp.make_filter(os.uname().machine, os.getpid()))
        filtered = True
    except OSError as error:
        gaps.append(f"no seccomp filter: {error.strerror}")
    if gaps and mode == "require":
        raise ConfigError(f'server.sandbox is "require", but workers cannot be confined: {"; ".join(gaps)}')
    return SandboxStatus(abi, filtered, tuple(gaps))


def no_new_privileges() -> None:
    """What both need where the process is not root's: nothing that it could start gains rights. Raises OSError."""
    zero = ctypes.c_ulong(0)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), zero, zero, zero) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    print(msgspec.json.encode(confine("try")).decode())
