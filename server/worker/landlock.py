"""Landlock: rights that a thread gives up for good, for itself and all threads that it starts (`linux/landlock.h`)."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import NamedTuple

from veltair.server.worker.system_calls import system_call

_CREATE_RULESET, _RESTRICT_SELF = 444, 446  # system calls, on every architecture
_RULESET_VERSION = 1 << 0
_EXECUTE, _WRITE_FILE, _REMOVE_DIR, _REMOVE_FILE = 1 << 0, 1 << 1, 1 << 4, 1 << 5
_MAKE = 0b111_1111 << 6  # CHAR, DIR, REG, SOCK, FIFO, BLOCK, SYM
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1


class Restriction(NamedTuple):
    """What a kernel of some ABI version on can deny.

    >>> [restriction.what for restriction in RESTRICTIONS if restriction.abi == 4]
    ['TCP']
    """

    abi: int  # the first that has it
    what: str
    files: int = 0  # LANDLOCK_ACCESS_FS_*
    network: int = 0  # LANDLOCK_ACCESS_NET_*
    scopes: int = 0  # LANDLOCK_SCOPE_*


RESTRICTIONS = (
    Restriction(1, "writing, making and removing files", _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE),
    Restriction(1, "starting programs", _EXECUTE),  # execve alone: libraries are mapped, and load as before
    Restriction(1, "tracing others and reading their memory"),  # comes with whatever else is denied
    Restriction(2, "moving files", _REFER),
    Restriction(3, "truncating files", _TRUNCATE),
    Restriction(4, "TCP", network=_BIND_TCP | _CONNECT_TCP),
    Restriction(5, "ioctl of devices", _IOCTL_DEV),
    Restriction(6, "signals to others and abstract Unix sockets", scopes=_SCOPE_SIGNAL | _SCOPE_ABSTRACT_UNIX_SOCKET),
)


def abi_version() -> int:
    """The kernel's, from 1 on. Raises OSError where it has no Landlock."""
    return _call(_CREATE_RULESET, ctypes.c_void_p(), ctypes.c_size_t(0), ctypes.c_uint(_RULESET_VERSION))


def restrict() -> int:
    """Give up all that RESTRICTIONS has for the kernel's ABI, without an exception; files are still read as before.

    `no_new_privileges` comes before. Returns the ABI version. Raises OSError where the kernel refuses, or where other
    threads run already: they would keep their rights.
    """
    abi = abi_version()
    threads = sum(1 for _ in Path("/proc/self/task").iterdir())
    if threads > 1:
        raise OSError(errno.EBUSY, f"{threads} threads run already")
    files = network = scopes = 0
    for restriction in RESTRICTIONS:
        if restriction.abi <= abi:
            files, network = files | restriction.files, network | restriction.network
            scopes |= restriction.scopes
    # struct landlock_ruleset_attr; an older kernel has fewer fields, and takes zeros in those that it does not know.
    attributes = struct.pack("=QQQ", files, network, scopes)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0))
    try:
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint(0))
    finally:
        os.close(ruleset)
    return abi


def _call(number: int, *arguments: object) -> int:
    return system_call(number, *arguments, reasons=_REASONS)


_REASONS = {
    errno.ENOSYS: "the kernel is built without it",
    errno.EOPNOTSUPP: "the kernel has it switched off (boot option lsm=)",
    errno.EPERM: "the system forbids it, usual in an older container runtime",
}
