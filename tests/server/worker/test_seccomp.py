"""The filter's program, as the kernel would run it, for every machine that it is written for."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from veltair.server.worker import seccomp
from veltair.server.worker.seccomp import make_filter
from veltair.server.worker.system_calls import CHECKED, DENIED, LAST_KNOWN, MACHINES

PID = 4711
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, AARCH32 = 0x40000003, 0x40000028
CALLS = {name: numbers for group in DENIED.values() for name, numbers in group.items()}
HEADERS = {  # of Linux, by the machine whose numbers they have
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
NEEDED = {  # what workers do most, or could not do without: numbers on x86_64 and aarch64
    "read": (0, 63),
    "write": (1, 64),
    "futex": (202, 98),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "madvise": (28, 233),
    "sched_yield": (24, 124),
    "sched_setaffinity": (203, 122),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "exit_group": (231, 94),
    "memfd_create": (319, 279),
}


def verdict(machine: str, number: int, *arguments: int, arch: int | None = None) -> int:
    """0 where the call is allowed, else the error that it meets."""
    data = struct.pack("<IIQ6Q", number, arch or ARCH[machine], 0, *(*arguments, *(0,) * (6 - len(arguments))))
    program, at, loaded = make_filter(machine, PID), 0, 0
    while True:
        code, if_true, if_false, operand = program[at]
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, operand)
        elif code == 0x06:
            assert operand == 0x7FFF0000 or operand >> 16 == 0x0005
            return operand & 0xFFFF if operand >> 16 == 0x0005 else 0
        else:
            holds = {0x15: loaded == operand, 0x25: loaded > operand, 0x45: bool(loaded & operand)}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_denied_whatever_its_arguments(machine: str) -> None:
    denied = {numbers[MACHINES.index(machine)] for numbers in CALLS.values()} - {None}
    checked = {numbers[MACHINES.index(machine)] for numbers in CHECKED.values()} - {None}
    assert len(denied) + len(checked) == sum(
        numbers[MACHINES.index(machine)] is not None for numbers in (*CALLS.values(), *CHECKED.values())
    ), "a number appears twice"
    for number in range(LAST_KNOWN + 1):
        if number not in checked:
            assert verdict(machine, number) == (errno.EPERM if number in denied else 0), number


@pytest.mark.parametrize("machine", MACHINES)
def test_what_a_worker_needs_is_allowed(machine: str) -> None:
    for name, numbers in NEEDED.items():
        assert verdict(machine, numbers[MACHINES.index(machine)]) == 0, name


O_CREAT, O_CLOEXEC, O_APPEND, O_TRUNC, TMPFILE = 0o100, 0o2000000, 0o2000, 0o1000, 0o20000000
CLONE_THREAD, THREAD_FLAGS = 0x10000, 0x3D0F00  # of pthread_create
ARGUMENTS = [
    ("openat", (-100 % 2**64, 0, O_CLOEXEC), 0),
    ("openat", (-100 % 2**64, 0, O_CLOEXEC | 0xFFFFFFFF << 32), 0),  # the kernel reads the low half
    *[("openat", (0, 0, flags | O_CLOEXEC), errno.EPERM) for flags in (1, 2, 3, O_CREAT, O_APPEND, O_TRUNC, TMPFILE)],
    ("open", (0, O_CLOEXEC), 0),
    ("open", (0, 2), errno.EPERM),
    ("openat2", (), errno.ENOSYS),
    ("clone3", (), errno.ENOSYS),
    ("clone", (THREAD_FLAGS,), 0),
    ("clone", (THREAD_FLAGS & ~CLONE_THREAD,), errno.EPERM),
    ("clone", (17,), errno.EPERM),  # fork: SIGCHLD
    *[
        (call, (pid,), 0 if pid == PID else errno.EPERM)
        for call in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
        for pid in (PID, PID + 1, 0, 1, -1 % 2**64, -PID % 2**64)
    ],
    ("prlimit64", (0,), 0),
    ("prlimit64", (PID,), 0),
    ("prlimit64", (1,), errno.EPERM),
    ("sched_setscheduler", (0,), 0),
    ("sched_setscheduler", (1,), errno.EPERM),
    ("prctl", (15,), 0),  # PR_SET_NAME
    ("prctl", (1,), errno.EPERM),
    *[("fcntl", (3, command), errno.EPERM) for command in (8, 10, 15)],
    *[("fcntl", (3, command), 0) for command in (1, 2, 3, 4, 1030)],
    *[("ioctl", (3, request), errno.EPERM) for request in (0x5412, 0x541C, 0x8901, 0x8902)],
    ("ioctl", (3, 0x5401), 0),  # TCGETS, of isatty
]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("call", "arguments", "error"), ARGUMENTS)
def test_calls_whose_arguments_decide(machine: str, call: str, arguments: tuple[int, ...], error: int) -> None:
    number = CHECKED[call][MACHINES.index(machine)]
    if number is None:
        assert (machine, call) == ("aarch64", "open")
    else:
        assert verdict(machine, number, *arguments) == error


def test_every_call_whose_arguments_decide_is_tried() -> None:
    assert {call for call, _, _ in ARGUMENTS} == set(CHECKED)


@pytest.mark.parametrize("machine", MACHINES)
def test_other_tables_of_numbers_lead_nowhere(machine: str) -> None:
    futex = NEEDED["futex"][MACHINES.index(machine)]
    for arch in (I386, AARCH32):
        assert verdict(machine, futex, arch=arch) == errno.EPERM
    for number in (LAST_KNOWN + 1, 0x40000000 + futex, 0xFFFFFFFF):
        assert verdict(machine, number) == errno.ENOSYS


def test_a_machine_without_a_table_is_said_to_have_no_filter() -> None:
    with pytest.raises(OSError, match="none for riscv64, only for x86_64 and aarch64"):
        make_filter("riscv64", PID)


@pytest.mark.parametrize("machine", MACHINES)
def test_the_numbers_are_those_of_the_system_s_headers(machine: str) -> None:
    header = HEADERS[machine]
    if not header.exists():
        pytest.skip(f"{header} is missing")
    found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
    numbers = {name: int(number) for name, number in found if int(number) < 1000}  # from 1024 on: of older machines
    for name, both in {**CALLS, **CHECKED, **NEEDED}.items():
        number = both[MACHINES.index(machine)]
        if name in numbers or (number is not None and number <= max(numbers.values())):
            if number is None:
                assert name in ("fork", "vfork"), name  # aarch64 does without
            else:
                assert numbers.get(name) == number, name
    assert numbers["seccomp"] == seccomp._SECCOMP[machine]
