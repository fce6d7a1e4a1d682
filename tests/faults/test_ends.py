"""How the daemon ends: by SIGTERM in any phase, and by SIGKILL."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tritonclient.grpc as triton_grpc
from running_daemon import configuration, running, serve, until
from running_engine import WAIT_S
from traffic import Held, nothing_left, processes, soon, traffic

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]


@pytest.mark.parametrize("phase", ["idle", "load", "overload", "model load"])
def test_a_drain_answers_all_that_was_accepted(rounds: Rounds, artifacts: Path, tmp_path: Path, phase: str) -> None:
    """SIGTERM loses no accepted query, ends with exit code 0, and leaves no process and no memory."""
    text = configuration(artifacts, "mlp", "spin", model_control=True, queue_slots=8 if phase == "overload" else 256)
    for _ in rounds(quick=1, full=40):
        with nothing_left(running(tmp_path, text)) as daemon:
            if phase == "idle":
                daemon.process.send_signal(signal.SIGTERM)
                assert daemon.process.wait(WAIT_S) == 0
                continue
            with traffic(daemon) as asking, triton_grpc.InferenceServerClient(daemon.grpc) as client:
                asking.served(50)
                held = Held(client, 64 if phase == "overload" else 4)
                if phase == "model load":
                    threading.Thread(target=_load, args=(daemon.grpc,), daemon=True).start()
                until("some are held", lambda d=daemon: d.metric("veltair_queries_held") > 0)
                daemon.process.send_signal(signal.SIGTERM)
                assert daemon.process.wait(WAIT_S) == 0
                ends = held.all()
            assert not asking.outcomes["wrong"]
            refused = [str(error) for error in ends if error is not None]
            assert all("UNAVAILABLE" in text or "RESOURCE_EXHAUSTED" in text for text in refused), refused
            assert len(refused) < len(ends)


def _load(address: str) -> None:
    with triton_grpc.InferenceServerClient(address) as client:
        try:
            client.load_model("mlp")
        except triton_grpc.InferenceServerException:
            return  # the drain came first


def test_a_signal_while_it_starts_ends_it(rounds: Rounds, artifacts: Path, tmp_path: Path) -> None:
    """SIGTERM at any moment of the start ends the daemon with exit code 0 or by the signal, and leaves nothing."""
    text = configuration(artifacts, "mlp", "spin")
    shared = set(Path("/dev/shm").iterdir())
    for number in rounds(quick=3, full=60):
        process = serve(tmp_path, text)
        own = Path(f"/proc/{process.pid}")
        mappings = 20 + 40 * (number % 30)  # a phase of the start, told by what it has loaded
        soon(lambda p=process, o=own, m=mappings: p.poll() is not None or _mapped(o) >= m, 3.0)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=WAIT_S)
        assert process.returncode in (0, -signal.SIGTERM)
    assert set(Path("/dev/shm").iterdir()) <= shared


def _mapped(process: Path) -> int:
    try:
        return len((process / "maps").read_bytes().splitlines())
    except OSError:
        return 1 << 30


@pytest.mark.parametrize("phase", ["idle", "load", "drain"])
def test_a_killed_front_takes_everything_with_it(rounds: Rounds, artifacts: Path, tmp_path: Path, phase: str) -> None:
    """SIGKILL of the front leaves no process, and no shared memory."""
    for _ in rounds(quick=1, full=20):
        with nothing_left(running(tmp_path, configuration(artifacts, "mlp"))) as daemon:
            if phase == "idle":
                daemon.process.kill()
                continue
            with traffic(daemon) as asking:
                asking.served(50)
                if phase == "drain":
                    daemon.process.send_signal(signal.SIGTERM)
                daemon.process.kill()
                daemon.process.wait(WAIT_S)
            assert not asking.outcomes["wrong"]


@pytest.mark.parametrize("victim", ["worker", "engine", "loader"])
@pytest.mark.parametrize("phase", ["idle", "load", "model load", "drain"])
def test_a_killed_process_costs_its_own_queries(
    rounds: Rounds, artifacts: Path, tmp_path: Path, victim: str, phase: str
) -> None:
    """SIGKILL of a worker, the engine or the loader loses its own queries alone, each with a typed error, and heals."""
    text = configuration(artifacts, "mlp", model_control=True)
    for number in rounds(quick=1, full=20):
        with nothing_left(running(tmp_path, text)) as daemon:
            with traffic(daemon) as asking:
                asking.served(50)
                if phase == "idle":
                    asking.end()
                elif phase == "model load":
                    threading.Thread(target=_load, args=(daemon.grpc,), daemon=True).start()
                elif phase == "drain":
                    daemon.process.send_signal(signal.SIGTERM)
                for process in processes(daemon)[victim][number % 2 :][:1]:
                    process.kill()
                if phase == "drain":
                    assert daemon.process.wait(WAIT_S) == 0
                elif phase != "idle":
                    asking.served(200)
            assert not asking.outcomes["wrong"]
            if phase == "drain":
                continue  # connections end then, and with them what was not accepted
            assert not asking.outcomes["lost"], asking.outcomes
            with traffic(daemon, asking.expected) as healed:
                healed.served(50)
