"""The event log of a running engine replays to the same decisions."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import numpy as np
import pytest
from example_models import LONG_TURNS, spin_inputs
from running_engine import block_under_way, serve_config

from veltair.cli import main
from veltair.errors import WorkerDiedError
from veltair.scheduler.event_log.header import load_header
from veltair.server.front.engine_client import EngineClient

pytestmark = pytest.mark.slow


X = np.random.default_rng(1).standard_normal((5, 16), dtype=np.float32)


def test_the_event_log_replays_to_the_same_decisions(
    artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "events.jsonl"

    async def scenario() -> None:
        client = await EngineClient.start(
            serve_config(artifacts, "mlp", "spin", event_log=str(log), planned_share=0.99)
        )
        running = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        worker = (await block_under_way(client, "spin")).worker
        await asyncio.gather(*(client.infer("spin", spin_inputs(1)) for _ in range(5)))
        os.kill(worker, signal.SIGKILL)
        await asyncio.wait([running])
        assert isinstance(running.exception(), WorkerDiedError)
        cancelled = asyncio.create_task(client.infer("spin", spin_inputs(LONG_TURNS)))
        await block_under_way(client, "spin")
        cancelled.cancel()
        await asyncio.gather(*(client.infer("mlp", {"x": X}) for _ in range(50)))
        await client.drain()

    asyncio.run(scenario())
    lines = log.read_text().splitlines()
    kinds = {msgspec.json.decode(line)["type"] for line in lines}
    assert kinds >= {"QueryArrived", "BlockFinished", "BlockFailed", "QueryCancelled", "StartBlock", "FinishQuery"}
    assert load_header(lines[0]).scheduler.planned_share == 0.99  # what decisions depend on
    assert main(["replay", str(log)]) == 0
    assert int(capsys.readouterr().out.split(": ")[1].split()[0]) >= 110  # events
    log.write_text("".join(line.replace('"core_set":[0]', '"core_set":[1]') + "\n" for line in lines))
    assert main(["replay", str(log)]) == 1
    assert "the decisions differ: log line" in capsys.readouterr().out
