"""`ForkServer`: a process that has imported all that its children need, and makes one in milliseconds by fork(2).

To import numpy and the TVM runtime takes a third of a second of a core in each process. Where five workers come at
once on two cores, as after the death of an engine, that is most of the time until all of them are there again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import time
from contextlib import ExitStack
from typing import Literal

from veltair.machine.standstill import Standstill, is_stopped
from veltair.server.ipc.channel import socket_pair
from veltair.server.ipc.process_setup import children_environment

PROGRAM = "veltair.server.fork_server_main"
FORK = b"fork"  # asks for a process, which gets the descriptor beside it
ANSWER = struct.Struct("=i")  # its id, or an errno as a negative number
READY = ANSWER.pack(0)  # said once, when everything is imported

ANSWER_S = 2.0  # a fork takes milliseconds
HUNG_NS = 5_000_000_000  # without any progress while it imports
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class ForkServer:
    """The end of whoever wants the processes, which become children of its own.

    ::

        forks = ForkServer("worker")
        if forks.is_ready():  # else ask again soon
            pid = forks.fork(theirs)  # a process that has this end of a socket
        forks.close()
    """

    def __init__(self, role: Literal["engine", "worker"], forked: tuple[socket.socket, int] | None = None) -> None:
        """`role`: of the processes. `forked`: a fork server that there is already, by its socket and its id; by default
        `is_ready` starts one."""
        self._role = role
        self._ready = False
        self._socket: socket.socket | None = None if forked is None else forked[0]
        self._pid = 0 if forked is None else forked[1]
        self._standstill = Standstill(self._pid)

    @property
    def pid(self) -> int:
        """0 where there is none."""
        return self._pid

    def is_ready(self) -> bool:
        """Whether `fork` is answered at once. Starts the process where there is none, or where it has been stopped.

        Raises OSError where it cannot be started, or has ended before it was ready. Does not block.
        """
        if self._socket is not None:
            self._look(self._socket)
        if self._socket is None:
            self._start()
        return self._ready

    def _look(self, sock: socket.socket) -> None:
        hung = is_stopped(self._pid)
        if not self._ready and not hung:
            hung = self._standstill.lasted_ns(time.monotonic_ns()) > HUNG_NS
        ended = not hung and os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if hung or ended:
            ready = self._ready
            self.close()
            if ended and not ready:
                raise ChildProcessError(f"the process that makes {self._role} processes ended while it started")
        elif not self._ready:
            try:
                self._ready = sock.recv(ANSWER.size, socket.MSG_DONTWAIT) == READY
            except BlockingIOError:
                return

    def _start(self) -> None:
        ours, theirs = socket_pair()
        theirs.set_inheritable(True)
        command = [sys.executable, "-P", "-m", PROGRAM, str(os.getpid()), str(theirs.fileno()), self._role]
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 2, 1),  # the front's own output may be read by a program
        ]
        try:
            self._pid = os.posix_spawn(sys.executable, command, children_environment(), file_actions=files)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._socket, self._standstill = ours, Standstill(self._pid)

    def fork(self, end: socket.socket) -> int:
        """Have it make a process that gets this end of a socket. Returns its id, of a child of this process.

        Raises OSError where the system gives no process, or the fork server does not answer: another one is started
        then, by `is_ready`.
        """
        if self._socket is None:
            raise ChildProcessError(f"there is no process that makes {self._role} processes")
        self._socket.settimeout(ANSWER_S)
        _adopt_orphans(True)
        try:
            socket.send_fds(self._socket, [FORK], [end.fileno()])
            answer = self._socket.recv(ANSWER.size)
        except (TimeoutError, ConnectionError) as error:
            self.close()
            raise ChildProcessError(f"the process that makes {self._role} processes gives none: {error}") from None
        finally:
            _adopt_orphans(False)
        if not answer:
            self.close()
            raise ChildProcessError(f"the process that makes {self._role} processes has ended")
        (number,) = ANSWER.unpack(answer)
        if number < 0:
            raise OSError(-number, os.strerror(-number))
        return int(number)

    def close(self) -> None:
        """End it. Those that it has made live on."""
        if self._socket is not None:
            self._socket.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        self._socket, self._pid, self._ready = None, 0, False


class ForkedProcess:
    """A child that a fork server has made, and our end of a socket to it, which does not block.

    ::

        process = ForkedProcess(forks)
        process.socket.send(b"…")
        process.end()
    """

    def __init__(self, forks: ForkServer) -> None:
        """Raises OSError where the system does not give what it takes; nothing is left then."""
        with ExitStack() as undo:
            self.socket, theirs = socket_pair()
            undo.callback(self.socket.close)
            with theirs:
                self.pid = forks.fork(theirs)
            undo.callback(os.waitpid, self.pid, 0)
            undo.callback(os.kill, self.pid, signal.SIGKILL)
            self.pidfd = os.pidfd_open(self.pid)  # readable once every thread of the process is gone
            self.socket.setblocking(False)
            undo.pop_all()

    def kill(self) -> None:
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def end(self) -> int:
        """Kill it if it still runs, reap it, and close everything. Returns its exit code, negative for a signal."""
        self.kill()
        ended = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        assert ended is not None  # without WNOHANG it waits
        os.close(self.pidfd)
        self.socket.close()
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _adopt_orphans(adopt: bool) -> None:
    """Whether this process becomes the parent of its grandchildren whose parent ends."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopt)) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
