"""What hostile code in a worker may try: `python forbidden_acts.py HOW FOLDER` confines itself and tries it all.

HOW is "free", "landlock", "seccomp" or "confined" (both, as a worker does it). It prints a JSON object: for each act
"done", or the name of the error that it met. FOLDER is empty. What an act needs is made before, when all is allowed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from veltair.server.worker import landlock, seccomp
from veltair.server.worker.sandbox import confine, no_new_privileges

NUMBERS = {  # of system calls without a function in Python: on x86_64 and aarch64
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "tgkill": (234, 131),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "openat2": (437, 437),
    "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "unshare": (272, 97),
    "shmget": (29, 194),
    "bpf": (321, 280),
}
AT_FDCWD, PTRACE_SEIZE, CLONE_FS = -100, 0x4206, 0x200
PR_SET_PDEATHSIG, PR_SET_PTRACER = 1, 0x59616D61
F_SETOWN, FIOSETOWN, TIOCSTI = 8, 0x8901, 0x5412

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char]) -> int:
    number = NUMBERS[name][("x86_64", "aarch64").index(os.uname().machine)]
    given = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *given)
    if result < 0:
        raise OSError(ctypes.get_errno(), name)
    return result


class Victim:
    """Another process of the user, its shared memory, and a secret that lies at the same address here."""

    def __init__(self) -> None:
        self.memory = Path("/dev/shm") / f"veltair-test-{os.getpid()}"
        self.memory.write_bytes(b"of another process")
        self.secret = ctypes.create_string_buffer(b"secret")
        ready, tell = os.pipe()
        if (pid := os.fork()) == 0:
            libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(-1))  # Yama lets only parents trace; fails where there is none
            os.write(tell, b"x")
            signal.pause()
            os._exit(0)
        os.read(ready, 1)
        self.pid = pid

    def end(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.memory.unlink()


def prepare(folder: Path, victim: Victim) -> dict[str, Callable[[], object]]:
    """The acts by name, in the order in which they are tried. Each raises OSError where it is denied."""
    file, other = folder / "file", folder / "other"
    for path in (file, other, folder / "doomed", folder / "old"):
        path.write_bytes(b"what was there")
    (folder / "empty").mkdir()
    garbage = folder / "garbage"
    garbage.write_bytes(b"")
    me, other_pid = os.getpid(), victim.pid
    pidfd = os.pidfd_open(other_pid)
    descriptor = os.open(file, os.O_RDWR)
    listener = socket.create_server(("127.0.0.1", 0))
    early = socket.create_connection(listener.getsockname())
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind("")
    abstract.listen()
    tcp, tcp_to_bind, unix = socket.socket(), socket.socket(), socket.socket(socket.AF_UNIX)
    silent = socket.socket()
    silent.bind(("127.0.0.1", 0))
    ours, theirs = socket.socketpair()
    terminal, _ = os.openpty()

    def forked() -> None:
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def spawned() -> None:
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)

    def threaded() -> None:
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

    def read_memory() -> None:
        with Path(f"/proc/{other_pid}/mem").open("rb", buffering=0) as file:
            file.seek(ctypes.addressof(victim.secret))
            assert file.read(6) == b"secret"

    def read_by_call() -> None:
        found = ctypes.create_string_buffer(6)
        local = struct.pack("PN", ctypes.addressof(found), 6)
        remote = struct.pack("PN", ctypes.addressof(victim.secret), 6)
        call("process_vm_readv", other_pid, local, 1, remote, 1, 0)
        assert found.raw == b"secret"

    def sent() -> None:
        ours.sendmsg([b"x"])
        assert theirs.recv(1) == b"x"

    def prctl() -> None:
        if libc.prctl(PR_SET_PDEATHSIG, 0):
            raise OSError(ctypes.get_errno(), "prctl")

    def opened(path: Path, flags: int) -> Callable[[], object]:
        return lambda: os.close(os.open(path, flags))

    return {
        "write": opened(other, os.O_WRONLY),
        "append": opened(other, os.O_WRONLY | os.O_APPEND),
        "read and write": opened(other, os.O_RDWR),
        "open to truncate": opened(other, os.O_RDONLY | os.O_TRUNC),
        "create": opened(folder / "new", os.O_CREAT | os.O_RDONLY),
        "nameless file": opened(folder, os.O_TMPFILE | os.O_WRONLY),
        "write by openat2": lambda: call("openat2", AT_FDCWD, bytes(other), struct.pack("QQQ", os.O_WRONLY, 0, 0), 24),
        "shared memory": opened(victim.memory, os.O_RDWR),
        "own memory file": opened(Path("/proc/self/mem"), os.O_RDWR),
        "truncate": lambda: os.truncate(other, 3),
        "truncate a descriptor": lambda: os.ftruncate(descriptor, 3),
        "grow a descriptor": lambda: os.posix_fallocate(descriptor, 0, 1 << 16),
        "unlink": (folder / "doomed").unlink,
        "rename": lambda: (folder / "old").rename(folder / "renamed"),
        "link": lambda: (folder / "hard").hardlink_to(file),
        "symlink": lambda: (folder / "soft").symlink_to(file),
        "mkdir": (folder / "made").mkdir,
        "rmdir": (folder / "empty").rmdir,
        "mkfifo": lambda: os.mkfifo(folder / "fifo"),
        "chmod": lambda: file.chmod(0o777),
        "chown": lambda: os.chown(file, os.getuid(), os.getgid()),
        "utime": lambda: os.utime(file, (0, 0)),
        "setxattr": lambda: os.setxattr(file, "user.test", b"x"),
        "tcp socket": lambda: socket.socket().close(),
        "udp socket": lambda: socket.socket(type=socket.SOCK_DGRAM).close(),
        "socketpair": lambda: [each.close() for each in socket.socketpair()],
        "tcp connect": lambda: tcp.connect(listener.getsockname()),
        "tcp bind": lambda: tcp_to_bind.bind(("127.0.0.1", 0)),
        "listen": silent.listen,
        "abstract connect": lambda: unix.connect(abstract.getsockname()),
        "accept": lambda: (listener.accept()[0].close(), early.close()),
        "fork": forked,
        "spawn": spawned,
        "kill": lambda: os.kill(other_pid, signal.SIGCONT),
        "tgkill": lambda: call("tgkill", other_pid, other_pid, signal.SIGCONT),
        "tkill": lambda: call("tkill", other_pid, signal.SIGCONT),
        "pidfd signal": lambda: signal.pidfd_send_signal(pidfd, signal.SIGCONT),
        "queued signal": lambda: call("rt_sigqueueinfo", other_pid, signal.SIGCONT, struct.pack("iii116x", 0, 0, -1)),
        "signal by an owner": lambda: fcntl.fcntl(ours, F_SETOWN, other_pid),
        "signal by an ioctl": lambda: fcntl.ioctl(ours, FIOSETOWN, struct.pack("i", other_pid)),
        "type into a terminal": lambda: fcntl.ioctl(terminal, TIOCSTI, b"x"),
        "ptrace": lambda: call("ptrace", PTRACE_SEIZE, other_pid, 0, 0),
        "read memory by a call": read_by_call,
        "read memory by a file": read_memory,
        "limits of others": lambda: resource.prlimit(other_pid, resource.RLIMIT_CORE, (0, 0)),
        "priority of others": lambda: os.setpriority(os.PRIO_PROCESS, other_pid, 19),
        "scheduling of others": lambda: os.sched_setscheduler(other_pid, os.SCHED_BATCH, os.sched_param(0)),
        "outlive the engine": prctl,
        "unshare": lambda: call("unshare", CLONE_FS),
        "setuid": lambda: os.setuid(os.getuid()),
        "chroot": lambda: os.chroot("/"),
        "System V memory": lambda: call("shmget", 0, 4096, 0o600),
        "io_uring": lambda: os.close(call("io_uring_setup", 1, ctypes.create_string_buffer(120))),
        "userfaultfd": lambda: os.close(call("userfaultfd", 1)),
        "counters": lambda: os.close(call("perf_event_open", struct.pack("II", 1, 64).ljust(64, b"\0"), 0, -1, -1, 0)),
        "keys": lambda: call("keyctl", 0, -3, 1),
        "bpf": lambda: os.close(call("bpf", 0, struct.pack("IIII", 2, 4, 4, 1).ljust(72, b"\0"), 72)),
        # What a worker needs; the rest of the tests show that it serves.
        "thread": threaded,
        "send": sent,
        "read": file.read_bytes,
        "list": lambda: list(folder.iterdir()),
        "load a library": lambda: ctypes.CDLL("libm.so.6"),
        "signal itself": lambda: os.kill(me, signal.SIGCONT),
        "limit itself": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        "own scheduling": lambda: os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0)),
        "own cores": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
    }


def outcome(act: Callable[[], object]) -> str:
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def main(how: str, folder: Path) -> None:
    victim = Victim()
    if (actor := os.fork()) == 0:
        attempt(how, prepare(folder, victim))
    try:
        assert os.waitpid(actor, 0)[1] == 0
    finally:
        victim.end()


def attempt(how: str, acts: dict[str, Callable[[], object]]) -> None:
    if how == "confined":
        confine("require")
    elif how != "free":
        no_new_privileges()
        if how == "landlock":
            landlock.restrict()
        else:
            seccomp.install(seccomp.make_filter(os.uname().machine, os.getpid()))
    print(json.dumps({name: outcome(act) for name, act in acts.items()}), flush=True)
    try:
        os.execv("/bin/echo", ["echo", "done"])
    except OSError as error:
        print(errno.errorcode[error.errno or 0], flush=True)
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
