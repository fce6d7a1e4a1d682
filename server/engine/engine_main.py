"""The engine process. The front starts it as `python -m veltair.server.engine.engine_main PARENT SOCKET TENSORS`.

SOCKET and TENSORS are inherited descriptors; the first message names those of the lanes.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Sequence

from veltair.errors import InvariantError, VeltairError
from veltair.server.engine.engine import Engine
from veltair.server.ipc import messages as m
from veltair.server.ipc.channel import Channel, ChannelClosedError
from veltair.server.ipc.process_setup import die_with_parent, ignore_termination_signals, log_to_stderr, set_nice

NICE = -10  # above the workers: a decision that waits for a core leaves cores idle


def main(arguments: Sequence[str]) -> int:
    """Run the engine process. Returns its exit code."""
    parent, sock, tensors = map(int, arguments)
    die_with_parent(parent)
    ignore_termination_signals()
    set_nice(NICE)
    log_to_stderr()
    front: Channel[m.ToEngine] = Channel(socket.socket(fileno=sock), m.ToEngine)
    try:
        configure = front.receive()
        if not isinstance(configure, m.ConfigureEngine):
            raise InvariantError(f"expected ConfigureEngine first, got {configure!r}")
        try:
            engine = Engine(front, tensors, configure)
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
