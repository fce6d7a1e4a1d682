"""`ServiceManager`: tells systemd, or whoever else started the daemon so, what state it is in (sd_notify(3))."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

END_S = 10.0  # for engine and workers to end, beyond the drain
PATIENCE_S = 1.0  # systemd reads at once; a lost READY=1 would have it end the daemon


class ServiceManager:
    """Datagrams to the socket that NOTIFY_SOCKET names; without it nothing is sent.

    The variables leave the environment: they are not for engine and workers.

    >>> ServiceManager({}).tell("READY=1")
    False
    """

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        path = environment.pop("NOTIFY_SOCKET", "")
        period_us, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path if path.startswith("/") else ""
        watched = self._address and period_us.isdigit() and pid in ("", str(os.getpid()))
        self.watchdog_s = int(period_us) / 1e6 if watched else 0.0  # longest silence; 0: nobody minds

    def tell(self, *states: str, patience_s: float = PATIENCE_S) -> bool:
        """Send assignments such as `READY=1`. Returns whether they were sent; `patience_s`: while the queue is full."""
        if not self._address:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(patience_s)
            sender.sendto("\n".join(states).encode(), self._address)
            return True
        return False

    def loading(self) -> None:
        """Before READY=1, which may take minutes."""
        self.tell("STATUS=loading the models")

    def ready(self, status: str) -> None:
        """After the start, and after each reload."""
        self.tell("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}", "STATUS=reading the configuration")

    def stopping(self, within_s: float) -> None:
        """The end takes so long at most: a manager whose own patience is shorter is to wait."""
        self.tell("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round((within_s + END_S) * 1e6)}", "STATUS=draining")

    async def keep_alive(self) -> None:
        """Say that the event loop turns, twice in each span that may pass without, from READY=1 on."""
        while self.watchdog_s:
            self.tell("WATCHDOG=1", patience_s=0.0)
            await asyncio.sleep(self.watchdog_s / 2)
