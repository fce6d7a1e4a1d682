"""What a load looks at to pace itself is there in a real daemon."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from running_daemon import configuration, running

from veltair.machine.load_pace import children_of, process_core_ns

pytestmark = pytest.mark.slow


def test_the_workers_are_the_children_of_the_front_s_children(artifacts: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(artifacts, "mlp", workers=2)) as daemon:
        front = daemon.process.pid
        found = {worker for engine in children_of(front) for worker in children_of(engine)}
        lines = {child.pid: " ".join(child.cmdline()) for child in psutil.Process(front).children(recursive=True)}
        workers = {pid for pid, line in lines.items() if "server.worker" in line}
        assert found - workers == {pid for pid in found if "fork_server" in lines[pid]}  # which does nothing meanwhile
        assert workers <= found
        assert len(found) > 1 and all(process_core_ns(worker) > 0 for worker in found)
