"""The other end of `ForkServer`: a process that makes copies of itself, and what tells them apart for `ps`."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import sys
from pathlib import Path

from veltair.server.ipc.forks.fork_server import ANSWER, READY

_ARGUMENTS = slice(45, 47)  # arg_start and arg_end of proc(5)'s stat, counted behind the name


def serve_forks(sock: socket.socket) -> socket.socket:
    """Make a process for each request. Returns in each of them, with what it was given; this process ends when the
    other end of `sock` is gone. There may be no other thread."""
    try:
        sock.send(READY)
        while True:
            request, descriptors, _, _ = socket.recv_fds(sock, ANSWER.size, 1, socket.MSG_CMSG_CLOEXEC)
            if not request:
                raise SystemExit(0)
            number = _fork_orphan() if descriptors else -errno.EMFILE
            if number == 0:
                sock.close()
                return socket.socket(fileno=descriptors[0])
            for descriptor in descriptors:
                os.close(descriptor)
            sock.send(ANSWER.pack(number))
    except (ConnectionResetError, BrokenPipeError):  # the other end went before it has read what was sent
        raise SystemExit(0) from None


def _fork_orphan() -> int:
    """Fork a process that is not a child of this one: it goes to the nearest process that adopts orphans. Returns its
    id, an errno as a negative number, and 0 in it."""
    try:
        reading, writing = os.pipe()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)
    try:
        between = os.fork()
    except OSError as error:
        os.close(reading)
        os.close(writing)
        return -(error.errno or errno.EAGAIN)
    if between == 0:
        try:
            number = os.fork()
        except OSError as error:
            number = -(error.errno or errno.EAGAIN)
        if number == 0:
            os.close(reading)
            os.close(writing)
            return 0
        os.write(writing, ANSWER.pack(number))
        os._exit(0)
    os.close(writing)
    answer = os.read(reading, ANSWER.size)
    os.close(reading)
    os.waitpid(between, 0)  # its child has found its new parent by then
    return int(ANSWER.unpack(answer)[0]) if answer else -errno.EAGAIN


def show_as(module: str) -> None:
    """Have `ps` show this process as `python -P -m module`: a copy has the line of what it was copied from."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = map(int, fields[_ARGUMENTS])
    line = b"\0".join(word.encode() for word in (sys.executable, "-P", "-m", module)) + b"\0"
    if begin and len(line) <= end - begin:  # the system does not say where it is to everybody
        ctypes.memmove(begin, line.ljust(end - begin, b"\0"), end - begin)
