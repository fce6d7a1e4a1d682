"""Asks an engine whether it is there, and tells one that hangs from one that has much to do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from veltair.errors import OverloadedError
from veltair.machine.standstill import Standstill
from veltair.server.front.engine_connection import EngineConnection
from veltair.server.ipc.daemon_events import EventKind, Report

_log = logging.getLogger("veltair.server")

LATE_S = 1.0  # an engine that has not answered by then is not ready


async def end_if_it_hangs(
    engine: EngineConnection, hung_s: float, tell: Callable[[bool], None], report: Report
) -> None:
    """Ask it once, and kill it where it does nothing for `hung_s`: it hangs, or somebody has stopped it. Returns once
    it has answered or ended. `tell`: hears now and then whether it has answered."""
    with suppress(OverloadedError):  # it has ended: who waits for that sees it
        if not await _answers(engine, hung_s, tell):
            _log.error("the engine process %d has not answered for %.1f s and is killed", engine.pid, hung_s)
            report(EventKind.ENGINE_HUNG, "", f"process {engine.pid} did not answer for {hung_s:g} s")
            engine.kill()
            await asyncio.shield(engine.exited)


async def _answers(engine: EngineConnection, hung_s: float, tell: Callable[[bool], None]) -> bool:
    # One that serves may not compute for so long either; one that starts may, as it reads the models' profiles.
    asked, watched, hung_ns = asyncio.create_task(engine.status()), Standstill(engine.pid), round(hung_s * 1e9)
    while not asked.done():
        now_ns = time.monotonic_ns()
        starts = not engine.ready.done()
        if watched.lasted_ns(now_ns) > hung_ns if starts else watched.hangs(now_ns, hung_ns):
            asked.cancel()
            return False
        await asyncio.wait([asked], timeout=min(hung_s, LATE_S))
        tell(asked.done())
    await asked
    return True
