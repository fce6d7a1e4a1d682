"""The engine process. The front has it forked from one that has imported all that it needs (`ForkServer`)."""

from __future__ import annotations

import gc
import socket

from veltair.errors import InvariantError, VeltairError
from veltair.server.engine.engine import Engine
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.forks.fork_server import ForkServer
from veltair.server.ipc.logs.line_writer import log_beside
from veltair.server.ipc.open_artifacts import as_passed
from veltair.server.ipc.process_setup import die_with_parent, log_to_stderr, set_nice

NICE = -10  # above the workers: a decision that waits for a core leaves cores idle


def run(parent: int, sock: socket.socket, forks: ForkServer) -> int:
    """Be the engine of that front, which passes on `sock` the descriptors of the tensor pool, of lanes and artifacts.
    `forks` makes the workers. Returns the exit code."""
    log_to_stderr()
    with log_beside():
        return _run(parent, Channel(sock, m.ToEngine), forks)


def _run(parent: int, front: Channel[m.ToEngine], forks: ForkServer) -> int:
    try:
        passed = front.receive_passed()
        die_with_parent(parent)  # by now the front knows this process as its child
        set_nice(NICE)
        configure = front.receive()
        if not isinstance(configure, m.ConfigureEngine):
            raise InvariantError(f"expected ConfigureEngine first, got {configure!r}")
        try:
            tensors, *_ = passed.values()
            engine = Engine(front, tensors, as_passed(configure, passed), forks)
        except VeltairError as error:
            front.send(m.StartFailed(type(error).__name__, str(error)))
            return 2
    except ChannelClosedError:
        return 0
    front.socket.setblocking(False)
    gc.collect()
    gc.freeze()
    engine.run()
    return 0
