"""Steps of the wall clock under a daemon that serves. Which clock decides is read in test_code_of_tenants.py."""

from __future__ import annotations

import email.utils
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
from running_daemon import Daemon, X, configuration, running, tensor, until
from traffic import nothing_left, processes, traffic

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]
DAY_S = 24 * 3600
STEPS_S = (DAY_S, -DAY_S, 3600, 20 * 365 * DAY_S, 7, 0)


def shown_s(daemon: Daemon) -> float:
    """The daemon's wall clock, by its `Date`."""
    with urllib.request.urlopen(f"http://{daemon.http}/v2/health/live") as answer:
        return email.utils.parsedate_to_datetime(answer.headers["Date"]).timestamp()


def test_a_wall_clock_that_jumps_changes_nothing(
    rounds: Rounds, artifacts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock jumps by seconds, hours, days and years: no query is late or lost, and nothing restarts."""
    library, clock = tmp_path / "stepped_clock.so", tmp_path / "clock"
    source = Path(__file__).with_name("stepped_clock.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    clock.write_bytes(bytes(8))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("STEPPED_CLOCK", str(clock))
    with nothing_left(running(tmp_path, configuration(artifacts, "mlp"))) as daemon:
        monkeypatch.undo()
        before = processes(daemon)
        for _ in rounds(quick=1, full=50):
            with traffic(daemon) as asking, triton_grpc.InferenceServerClient(daemon.grpc) as client:
                for step_s in STEPS_S:
                    with clock.open("r+b") as file:
                        file.write(struct.pack("q", step_s))
                    asking.served(50)
                    client.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], timeout=50_000_000)  # in time, by far
                    until("it to be shown", lambda s=step_s: abs(shown_s(daemon) - time.time() - s) < 2)
                    assert daemon.status() == 200
            assert set(asking.outcomes) == {"right"}, asking.outcomes
        assert processes(daemon) == before
