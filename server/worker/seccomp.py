"""A filter of system calls, in classic BPF, for all threads of this process and for good (`linux/seccomp.h`).

It denies what `system_calls.py` lists, and calls that are newer than that list. ::

    install(make_filter(os.uname().machine, os.getpid()))
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence

from veltair.server.worker.system_calls import CHECKED, DENIED, LAST_KNOWN, MACHINES, system_call

Instruction = tuple[int, int, int, int]  # struct sock_filter: code, instructions to skip if true and if not, operand

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # linux/audit.h
_SECCOMP = {"x86_64": 317, "aarch64": 277}  # the system call
_SET_MODE_FILTER = 1
# SPEC_ALLOW: kernels before 5.16 else slow the process down, against side channels that workers have anyway.
_TSYNC, _SPEC_ALLOW = 1 << 0, 1 << 2

# linux/bpf_common.h: BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ, …, with BPF_K; BPF_RET | BPF_K
_LOAD, _IF_EQUAL, _IF_GREATER, _IF_BITS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16  # of struct seccomp_data; arguments have 8 bytes, the low half first

_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
ALLOW: Instruction = (_RETURN, 0, 0, _RET_ALLOW)
DENY: Instruction = (_RETURN, 0, 0, _RET_ERRNO | errno.EPERM)
MISSING: Instruction = (_RETURN, 0, 0, _RET_ERRNO | errno.ENOSYS)

_CLONE_THREAD = 0x00010000  # linux/sched.h
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | (os.O_TMPFILE & ~os.O_DIRECTORY)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h: a worker ends with its engine
_OWNER_COMMANDS = (8, 10, 15)  # fcntl F_SETOWN, F_SETSIG, F_SETOWN_EX: the kernel would signal whom they name
_REQUESTS = (0x5412, 0x541C, 0x8901, 0x8902)  # ioctl TIOCSTI, TIOCLINUX: types into a terminal; FIOSETOWN, SIOCSPGRP


def install(program: Sequence[Instruction]) -> None:
    """Ask it about every call from here on. `no_new_privileges` comes before. Raises OSError where that cannot be."""
    raw = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))  # struct sock_fprog
    mode, flags = ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(_TSYNC | _SPEC_ALLOW)
    thread = system_call(_SECCOMP[os.uname().machine], mode, flags, header, reasons=_REASONS)
    if thread:
        raise OSError(errno.EBUSY, f"thread {thread} has a filter of its own")


def make_filter(machine: str, pid: int) -> list[Instruction]:
    """The program for a process of that id. Kernels from 5.11 on ask it once about a call that is always allowed.

    Raises OSError for a machine whose numbers are not known here.

    >>> make_filter("aarch64", pid=7)[-1] == ALLOW
    True
    """
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"there is none for {machine}, only for {' and '.join(MACHINES)}")
    at, checks = MACHINES.index(machine), _checks(pid)
    calls = [(numbers[at], [DENY]) for group in DENIED.values() for numbers in group.values()]
    calls += [(numbers[at], checks[name]) for name, numbers in CHECKED.items()]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_IF_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        DENY,  # by another table of numbers, such as that of 32-bit programs
        (_LOAD, 0, 0, _NUMBER_AT),
        (_IF_GREATER, 0, 1, LAST_KNOWN),
        MISSING,  # newer than our list; or of the x32 table, whose numbers are high
    ]
    for number, body in calls:
        if number is not None:
            program += [(_IF_EQUAL, 0, len(body), number), *body]
    return [*program, ALLOW]


def _checks(pid: int) -> dict[str, list[Instruction]]:
    """What is done about each call of CHECKED. All of these arguments have 4 bytes, or their bits lie there."""
    own = _deny_unless_one_of(0, pid)
    return {
        "open": _deny_bits(1, _WRITES),
        "openat": _deny_bits(2, _WRITES),
        "openat2": [MISSING],  # its flags lie in memory, which a filter cannot read
        "clone": _deny_without_bits(0, _CLONE_THREAD),
        "clone3": [MISSING],  # likewise; pthread_create then takes clone
        "kill": own,
        "tgkill": own,  # abort() needs it
        "rt_sigqueueinfo": own,
        "rt_tgsigqueueinfo": own,
        "prlimit64": _deny_unless_one_of(0, 0, pid),
        "sched_setscheduler": _deny_unless_one_of(0, 0),
        "prctl": _deny_one_of(0, _PR_SET_PDEATHSIG),
        "fcntl": _deny_one_of(1, *_OWNER_COMMANDS),
        "ioctl": _deny_one_of(1, *_REQUESTS),
    }


def _argument(index: int) -> Instruction:
    return _LOAD, 0, 0, _ARGUMENTS_AT + 8 * index


def _deny_bits(argument: int, bits: int) -> list[Instruction]:
    return [_argument(argument), (_IF_BITS, 0, 1, bits), DENY, ALLOW]


def _deny_without_bits(argument: int, bits: int) -> list[Instruction]:
    return [_argument(argument), (_IF_BITS, 1, 0, bits), DENY, ALLOW]


def _deny_one_of(argument: int, *values: int) -> list[Instruction]:
    return [_argument(argument), *_skip_if_one_of(values), ALLOW, DENY]


def _deny_unless_one_of(argument: int, *values: int) -> list[Instruction]:
    return [_argument(argument), *_skip_if_one_of(values), DENY, ALLOW]


def _skip_if_one_of(values: tuple[int, ...]) -> list[Instruction]:
    """Skip the instruction that follows the tests where the argument is one of them."""
    return [(_IF_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]


_REASONS = {
    errno.ENOSYS: "the kernel is built without it",
    errno.EINVAL: "the kernel is built without filters",
    errno.EPERM: "the system forbids it, usual in a container",
}
