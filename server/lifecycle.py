"""Signals to the front process, and how it reloads and drains, with the log and the service manager told."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from dataclasses import dataclass, field
from typing import Any

from veltair.config import ServeConfig
from veltair.errors import VeltairError
from veltair.server.access.callers import Access
from veltair.server.access.certificates import Certificates
from veltair.server.front.engine_client import EngineClient
from veltair.server.front.grpc_front import GrpcFront
from veltair.server.ipc.daemon_events import EventKind, Report
from veltair.server.ipc.logs.json_lines import event
from veltair.server.repository.folder_reads import FolderReads
from veltair.server.repository.model_control import ModelControl
from veltair.server.service_manager import ServiceManager
from veltair.server.wire.io_threads import IoThreads

SERVING = "serving"

_log = logging.getLogger("veltair.server")


@dataclass(frozen=True, slots=True)
class Signals:
    """What the process was asked from outside.

    ::

        signals = follow_signals(attached=False)
        await signals.stop.wait()
    """

    stop: asyncio.Event = field(default_factory=asyncio.Event)  # drain: the first SIGTERM or SIGINT
    stop_now: asyncio.Event = field(default_factory=asyncio.Event)  # end at once: the second
    reload: asyncio.Event = field(default_factory=asyncio.Event)  # read the configuration again: SIGHUP


def follow_signals(*, attached: bool) -> Signals:
    """Have the running loop handle the process's signals from here on. `attached`: the end of stdin asks to drain."""
    loop, signals = asyncio.get_running_loop(), Signals()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (signals.stop_now if signals.stop.is_set() else signals.stop).set())
    loop.add_signal_handler(signal.SIGHUP, signals.reload.set)
    if attached:
        loop.add_reader(sys.stdin.fileno(), _read_stdin, loop, signals.stop)
    return signals


def _read_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Drop what stdin has. At its end whoever holds the other side is gone, or wants the daemon to end."""
    if not os.read(sys.stdin.fileno(), 1 << 12):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()


async def reload_when_asked(asked: asyncio.Event, control: ModelControl, manager: ServiceManager) -> None:
    """Read the configuration again each time that `asked` is set."""
    while True:
        await asked.wait()
        asked.clear()
        manager.reloading()
        try:
            done = await control.reload()
        except (VeltairError, OSError, MemoryError) as error:  # the next one may succeed
            _log.error("%s", error, extra=event("reload_failed"))
        else:
            changes = ", ".join(done) or "nothing has changed"
            _log.info("the configuration was read again: %s", changes, extra=event("reload"))
        manager.ready(SERVING)


async def ended_before(stop: asyncio.Event, task: asyncio.Task[Any]) -> bool:
    """Wait for either. Returns whether the task has ended."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, task], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    return task.done()


async def leave(
    client: EngineClient, grpc_front: GrpcFront, stop_now: asyncio.Event, lame_duck_s: float, report: Report
) -> None:
    """Be not ready, serve for `lame_duck_s` more, and answer the accepted queries; a second signal ends the wait."""
    client.report_not_ready()
    grpc_front.report_draining()
    if lame_duck_s:
        shown = "not ready any more; serving for %.1f s more, or until a second signal"
        _log.info(shown, lame_duck_s, extra=event("not_ready"))
        report(EventKind.NOT_READY, "", f"the server will drain in {lame_duck_s:g} s")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop_now.wait(), lame_duck_s)
    shown = "draining: accepted queries are answered, new ones refused; a second signal ends at once"
    _log.info(shown, extra=event("drain"))
    report(EventKind.DRAINING, "", "accepted queries are answered, new ones refused")
    draining = asyncio.create_task(client.drain())
    if not await ended_before(stop_now, draining):
        await client.shut_down()
    await draining


async def let_in(
    access: Access,
    certificates: Certificates | None,
    threads: IoThreads | None,
    config: ServeConfig,
    reads: FolderReads,
) -> list[str]:
    """Let the clients of the configuration ask from here on. Returns what is new, in words.

    Raises ConfigError where the certificates cannot be used.
    """
    done = []
    names = [client.certificate for client in config.clients if client.certificate]
    if certificates is not None and await certificates.load(names, reads):
        done.append("read the certificate")
    if access.replace(config.clients):
        done.append("let other clients ask")
        if threads is not None:
            threads.name_callers(access.names_callers)
    return done
