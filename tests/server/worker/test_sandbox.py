"""A process that has confined itself tries what hostile code may try, beside one that is free to do it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from veltair.errors import ConfigError
from veltair.server.ipc.status_records import SandboxStatus
from veltair.server.worker import landlock
from veltair.server.worker.sandbox import confine

ACTS = Path(__file__).parent.parent / "forbidden_acts.py"
BOTH, FILTER = ("landlock", "seccomp"), ("seccomp",)
# Who denies an act, and for Landlock the ABI from which on it does.
DENIED: dict[str, tuple[tuple[str, ...], int]] = {
    **dict.fromkeys(("write", "append", "read and write", "create", "nameless file", "write by openat2"), (BOTH, 1)),
    **dict.fromkeys(("shared memory", "own memory file", "mkdir", "rmdir", "mkfifo", "unlink"), (BOTH, 1)),
    **dict.fromkeys(("rename", "link", "symlink", "spawn", "execve"), (BOTH, 1)),
    **dict.fromkeys(("ptrace", "read memory by a call"), (BOTH, 1)),
    **dict.fromkeys(("truncate", "open to truncate"), (BOTH, 3)),
    **dict.fromkeys(("tcp connect", "tcp bind"), (BOTH, 4)),
    **dict.fromkeys(("abstract connect", "kill", "tgkill", "tkill", "pidfd signal", "queued signal"), (BOTH, 6)),
    "read memory by a file": (("landlock",), 1),  # a filter sees no path
    **dict.fromkeys(("truncate a descriptor", "grow a descriptor", "chmod", "chown", "utime", "setxattr"), (FILTER, 0)),
    **dict.fromkeys(("tcp socket", "udp socket", "socketpair", "listen", "accept", "fork", "unshare"), (FILTER, 0)),
    **dict.fromkeys(("signal by an owner", "signal by an ioctl", "type into a terminal"), (FILTER, 0)),
    **dict.fromkeys(("limits of others", "priority of others", "scheduling of others"), (FILTER, 0)),
    **dict.fromkeys(("outlive the engine", "setuid", "chroot", "System V memory", "io_uring"), (FILTER, 0)),
    **dict.fromkeys(("userfaultfd", "counters", "keys", "bpf"), (FILTER, 0)),
}
ALLOWED = (
    *("thread", "send", "read", "list", "load a library"),
    *("signal itself", "limit itself", "own scheduling", "own cores"),
)
# Some systems deny these to everybody, or to users, or do not have them.
MAY_BE_MISSING = {
    *("chroot", "bpf", "counters", "userfaultfd", "io_uring", "keys", "setxattr", "type into a terminal"),
    *("System V memory", "write by openat2", "nameless file"),
}
REFUSALS = {"EPERM", "EACCES", "ENOSYS"}


@cache
def status() -> SandboxStatus:
    """What this kernel gives, from a process of its own."""
    command = [sys.executable, "-P", "-m", "veltair.server.worker.sandbox"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return SandboxStatus(found["landlock_abi"], found["seccomp"], tuple(found["gaps"]))


def need(how: str, abi: int = 1) -> None:
    """Skip where this kernel does not have it."""
    if how in ("landlock", "confined") and status().landlock_abi < max(abi, 1):
        pytest.skip(f"needs Landlock with ABI {abi}; this kernel has {status()}")
    if how in ("seccomp", "confined") and not status().seccomp:
        pytest.skip(f"needs a seccomp filter; this kernel has {status()}")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """By act, of a process that is confined in that way."""

    @cache
    def tried(how: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("acts")
        done = subprocess.run([sys.executable, "-P", ACTS, how, folder], check=True, stdout=subprocess.PIPE, text=True)
        acts, execve = done.stdout.splitlines()
        return {**json.loads(acts), "execve": execve}

    return tried


def test_every_act_is_in_the_table(outcomes: Callable[[str], dict[str, str]]) -> None:
    assert {*DENIED, *ALLOWED} == set(outcomes("free"))


@pytest.mark.parametrize("how", ["landlock", "seccomp", "confined"])
@pytest.mark.parametrize("act", DENIED)
def test_what_is_forbidden(outcomes: Callable[[str], dict[str, str]], act: str, how: str) -> None:
    deniers, abi = DENIED[act]
    need(how, abi if how == "landlock" or deniers == ("landlock",) else 1)
    free = outcomes("free")[act]
    if free != "done" and act in MAY_BE_MISSING:
        pytest.skip(f"{act}: this system refuses it to everybody ({free})")
    assert free == "done"
    if how in deniers or how == "confined":
        assert outcomes(how)[act] in REFUSALS
    else:
        assert outcomes(how)[act] == "done"


@pytest.mark.parametrize("how", ["free", "landlock", "seccomp", "confined"])
@pytest.mark.parametrize("act", ALLOWED)
def test_what_a_worker_needs(outcomes: Callable[[str], dict[str, str]], act: str, how: str) -> None:
    need(how)
    assert outcomes(how)[act] == "done"


def run_python(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True)


def test_a_crash_still_ends_the_process() -> None:
    need("confined")
    script = "import os; from veltair.server.worker.sandbox import confine; confine('require'); os.abort()"
    assert run_python(script).returncode == -signal.SIGABRT


def test_threads_that_run_already_are_a_gap_and_not_overlooked() -> None:
    """Landlock holds for the thread that asks for it: one that started before would keep its rights."""
    need("confined")
    script = """
import threading
from veltair.server.worker.sandbox import confine
stop = threading.Event()
thread = threading.Thread(target=stop.wait)
thread.start()
print(confine("try"))
stop.set()
"""
    said = run_python(script).stdout
    assert "landlock_abi=0, seccomp=True" in said
    assert "no Landlock: 2 threads run already" in said


def test_a_filter_covers_threads_that_run_already() -> None:
    need("seccomp")
    script = """
import socket, threading
from veltair.server.worker.sandbox import confine
confined, met = threading.Event(), []
def meet():
    confined.wait()
    try:
        socket.socket()
    except PermissionError:
        met.append("denied")
thread = threading.Thread(target=meet)
thread.start()
confine("try")
confined.set()
thread.join()
print(met)
"""
    assert run_python(script).stdout == "['denied']\n"


def test_off_is_off() -> None:
    assert confine("off") == SandboxStatus(0, False, ("server.sandbox is off",))
    os.close(os.open(os.devnull, os.O_WRONLY))


def test_require_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> int:
        raise OSError(38, "the kernel is built without it")

    monkeypatch.setattr(landlock, "restrict", missing)
    monkeypatch.setattr("veltair.server.worker.seccomp.install", missing)
    monkeypatch.setattr("veltair.server.worker.sandbox.no_new_privileges", lambda: None)
    with pytest.raises(ConfigError, match=r'"require".*no Landlock: the kernel .*; no seccomp filter: the kernel'):
        confine("require")
    assert confine("try").gaps == (
        "no Landlock: the kernel is built without it",
        "no seccomp filter: the kernel is built without it",
    )
