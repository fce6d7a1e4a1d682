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
from veltair.errors import ConfigError, WorkerDiedError
from veltair.scheduler.event_log.header import InterferenceSettings, SchedulerSettings, load_header, make_header
from veltair.scheduler.events import WorkersChanged
from veltair.server.engine.event_log import EventLog
from veltair.server.front.engine_client import EngineClient
from veltair.types import Machine

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


HEADER = make_header(
    SchedulerSettings("fcfs", Machine(((0,),)), 1, 1.0, (), InterferenceSettings("observed", {})), {}, {"kind": "test"}
)
EVENT = WorkersChanged(1, 2)


def test_a_log_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path in (tmp_path, tmp_path / "link", Path("/dev/null")):
        with pytest.raises(ConfigError, match="expected a file, or nothing there"):
            EventLog(path, HEADER)
    assert not (tmp_path / "target").exists() and Path("/dev/null").is_char_device()
    first = EventLog(tmp_path / "log", HEADER)
    first.write(EVENT, [])
    first.close()
    EventLog(tmp_path / "log", HEADER).close()
    assert len((tmp_path / "log.previous").read_text().splitlines()) == 2


def test_a_full_disk_ends_the_log_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog(tmp_path / "log", HEADER)
    log._file.close()
    log._file = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115
    for _ in range(10_000):
        log.write(EVENT, [])
    log.close()
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / 'log'}: No space left on device; nothing more is logged, and serving goes on"
    ]
