"""The fork servers: `python -m veltair.server.fork_server_main PARENT SOCKET ROLE`.

The front starts one for engines. It has imported what engines and workers need, and waits. An engine that was forked
from it forks first of all, before it knows anything, the fork server of its own workers: that holds nothing but what
was imported either, and takes hardly any memory of its own.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Sequence

from veltair.server.engine import engine_main
from veltair.server.ipc.channel import socket_pair
from veltair.server.ipc.forks.fork_server import PROGRAM, ForkServer
from veltair.server.ipc.forks.forked_process import serve_forks, show_as
from veltair.server.ipc.process_setup import die_with_parent, ignore_termination_signals, set_nice
from veltair.server.worker import worker


def main(arguments: Sequence[str]) -> int:
    """Run a fork server, and then what becomes of its copies. Returns the exit code."""
    parent, sock, role = int(arguments[0]), socket.socket(fileno=int(arguments[1])), arguments[2]
    ignore_termination_signals()
    worker.import_runtime()
    gc.collect()
    gc.freeze()  # a collection would write to pages that all of them share
    return _make_engines(parent, sock) if role == "engine" else _make_workers(parent, sock)


def _make_engines(front: int, sock: socket.socket) -> int:
    die_with_parent(front)
    given = serve_forks(sock)
    show_as(engine_main.__name__)
    engine = os.getpid()
    ours, theirs = socket_pair()
    forks = os.fork()
    if not forks:
        given.close()
        ours.close()
        show_as(PROGRAM)
        return _make_workers(engine, theirs)
    theirs.close()
    return engine_main.run(front, given, ForkServer("worker", (ours, forks)))


def _make_workers(engine: int, sock: socket.socket) -> int:
    die_with_parent(engine)
    set_nice(0)
    given = serve_forks(sock)
    show_as(worker.__name__)
    return worker.run(engine, given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
