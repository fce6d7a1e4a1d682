"""Asks an engine whether it is there, and tells one that hangs from one that has much to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from veltair.machine.standstill import Standstill
from veltair.server.front.engine_connection import EngineConnection

LATE_S = 1.0  # an engine that has not answered by then is not ready


async def answers(engine: EngineConnection, hung_s: float, tell: Callable[[bool], None]) -> bool:
    """Ask it once. False where it has done nothing for `hung_s`: it hangs, or somebody has stopped it.

    One that serves may not compute for so long either; one that starts may. `tell`: hears now and then whether it has
    answered. Raises OverloadedError where the process ends meanwhile.
    """
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
