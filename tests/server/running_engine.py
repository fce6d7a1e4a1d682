"""Starts an engine with workers from a test, and waits for what must happen."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from veltair import config
from veltair.config import ServeConfig
from veltair.server.front.engine_client import EngineClient
from veltair.server.ipc.daemon_events import Report, report_nothing
from veltair.server.ipc.status_records import BlockStatus

WAIT_S = 60.0  # for what must come; a test that waits so long has failed


def serve_config(artifacts: Path, *names: str, **server: Any) -> ServeConfig:
    """`serve_config(artifacts, "mlp", "spin", workers=2)`: a configuration of those tenants."""
    own = {"workers": 2, "policy": "veltair-full", "hung_block_s": 60}
    raw = {
        "server": {"http": "127.0.0.1:0", "grpc": "127.0.0.1:0"} | own | server,
        "tenants": [{"name": name, "artifact": str(artifacts / name)} for name in names],
    }
    return config.parse_config(raw, artifacts / "serve.toml")


@asynccontextmanager
async def serving(configuration: ServeConfig, report: Report = report_nothing) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(configuration, report=report)
    try:
        yield client
    finally:
        await client.shut_down()


async def until(what: str, condition: Callable[[], Awaitable[Any]]) -> Any:
    """The first truthy result of the condition, asked again and again."""
    give_up = time.monotonic() + WAIT_S
    while not (result := await condition()):
        assert time.monotonic() < give_up, f"waited {WAIT_S} s for: {what}"
        await asyncio.sleep(0.005)
    return result


async def block_under_way(client: EngineClient, tenant: str) -> BlockStatus:
    """A block of the tenant that has layers both behind and before it."""

    async def look() -> BlockStatus | None:
        blocks = (await client.snapshot()).status.running
        return next((b for b in blocks if b.tenant == tenant and b.start < b.layer < b.stop - 1), None)

    found: BlockStatus = await until(f"a block of {tenant} under way", look)
    return found


def readable(file: Any) -> bool:
    """Whether there comes something to read, whatever the descriptor's number (`select.select` ends at 1,023)."""
    waiting = select.poll()
    waiting.register(file, select.POLLIN)
    return bool(waiting.poll(WAIT_S * 1000))


def process_state(pid: int) -> str:
    """The state of the process's main thread, as `ps` shows it; X when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def living(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    return process_state(pid) not in ("Z", "X")
