"""How the daemon ends: by SIGTERM in any phase, and by SIGKILL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton_grpc
from compiled_models import CLI, image_model
from running_daemon import Daemon, configuration, running, serve, until
from running_engine import WAIT_S
from traffic import Held, is_typed, no_shared_memory_left, nothing_left, processes, soon, traffic, whole

pytestmark = pytest.mark.slow

Rounds = Callable[..., range]


@pytest.mark.parametrize("phase", ["idle", "load", "overload", "model load"])
def test_a_drain_answers_all_that_was_accepted(rounds: Rounds, artifacts: Path, tmp_path: Path, phase: str) -> None:
    """SIGTERM loses no accepted query, ends with exit code 0, and leaves no process and no memory."""
    text = configuration(artifacts, "mlp", "spin", model_control=True, queue_slots=8 if phase == "overload" else 256)
    for _ in rounds(quick=int(phase != "idle"), full=50):
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
    with no_shared_memory_left():
        for number in rounds(quick=3, full=60):
            process = serve(tmp_path, text)
            own = Path(f"/proc/{process.pid}")
            mappings = 20 + 40 * (number % 30)  # a phase of the start, told by what it has loaded
            soon(lambda p=process, o=own, m=mappings: p.poll() is not None or _mapped(o) >= m, 3.0)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=WAIT_S)
            assert process.returncode in (0, -signal.SIGTERM)


def _mapped(process: Path) -> int:
    try:
        return len((process / "maps").read_bytes().splitlines())
    except OSError:
        return 1 << 30


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
def test_a_compile_that_is_ended(rounds: Rounds, tmp_path: Path, how: signal.Signals) -> None:
    """SIGTERM or Ctrl-C at any moment of a compile: exit code 143 or 130, and no half of an artifact is left."""
    model, temporary = image_model(tmp_path / "tiny.onnx"), tmp_path / "temporary"
    temporary.mkdir()
    own = os.environ | {"TMPDIR": str(temporary), "VELTAIR_CACHE": str(tmp_path / "cache")}
    for number in rounds(quick=int(how == signal.SIGTERM), full=40):
        command = [*CLI, "compile", str(model), "--out", str(tmp_path / "out"), "--json", "--fresh"]
        process = subprocess.Popen(command, env=own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        compiler = psutil.Process(process.pid)
        until("a draft", lambda p=process: p.poll() is not None or bool(list(tmp_path.glob(".out*"))))
        files = number % 8  # a phase of the compile, told by what it has written
        soon(lambda p=process, n=files: p.poll() is not None or len(list(temporary.rglob("*"))) > n, 5.0)
        children = compiler.children(recursive=True)
        process.send_signal(how)
        assert process.wait(WAIT_S) in (0, 128 + how)
        _, left = psutil.wait_procs(children, WAIT_S)
        assert not left
        assert not list(tmp_path.glob(".out*")) and not list(temporary.glob("veltair*"))
        assert not list((tmp_path / "cache").rglob(".veltair-*"))
        shutil.rmtree(tmp_path / "out", ignore_errors=True)


KILLED_IN = ["start", "idle", "load", "overload", "model load", "drain"]


def overloaded(daemon: Daemon, client: triton_grpc.InferenceServerClient) -> Held:
    """More queries than it takes, some of which it holds."""
    held = Held(client, 64)
    until("some are held", lambda: daemon.metric("veltair_queries_held") > 0)
    return held


@pytest.mark.parametrize("phase", KILLED_IN)
def test_a_killed_front_takes_everything_with_it(rounds: Rounds, artifacts: Path, tmp_path: Path, phase: str) -> None:
    """SIGKILL of the front leaves no process, and no shared memory."""
    text = configuration(artifacts, "mlp", "spin", model_control=True, queue_slots=8 if phase == "overload" else 256)
    for number in rounds(quick=int(phase in ("start", "overload", "drain")), full=20):
        if phase == "start":
            killed_while_it_starts(tmp_path, text, number)
            continue
        with nothing_left(running(tmp_path, text)) as daemon:
            if phase == "idle":
                daemon.process.kill()
                continue
            with traffic(daemon) as asking, triton_grpc.InferenceServerClient(daemon.grpc) as client:
                asking.served(50)
                if phase == "overload":
                    overloaded(daemon, client)
                elif phase == "model load":
                    threading.Thread(target=_load, args=(daemon.grpc,), daemon=True).start()
                elif phase == "drain":
                    daemon.process.send_signal(signal.SIGTERM)
                daemon.process.kill()
                daemon.process.wait(WAIT_S)
            assert not asking.outcomes["wrong"]


def killed_while_it_starts(folder: Path, text: str, number: int) -> None:
    """At a phase of its start, told by what it has started."""
    with no_shared_memory_left():
        process = serve(folder, text)
        front = psutil.Process(process.pid)
        soon(lambda: process.poll() is not None or len(front.children(recursive=True)) > number % 5, WAIT_S)
        children = front.children(recursive=True)
        process.kill()
        process.communicate(timeout=WAIT_S)
        _, left = psutil.wait_procs(children, WAIT_S)
        assert not left


VICTIMS_IN = [(victim, phase) for victim in ("worker", "engine", "loader") for phase in KILLED_IN[1:]]
KILLED_QUICKLY = {
    *(("worker", "overload"), ("engine", "load"), ("engine", "model load"), ("loader", "model load")),
    *(("worker", "drain"), ("engine", "start")),
}


@pytest.mark.parametrize(("victim", "phase"), [*VICTIMS_IN, ("worker", "start"), ("engine", "start")])
def test_a_killed_process_costs_its_own_queries(
    rounds: Rounds,
    recovered: Callable[[float], None],
    beside: str,
    artifacts: Path,
    tmp_path: Path,
    victim: str,
    phase: str,
) -> None:
    """SIGKILL of a worker, the engine or the loader loses its own queries alone, each with a typed error, and heals."""
    slots = 8 if phase == "overload" else 256
    text = configuration(artifacts, "mlp", "spin", model_control=True, queue_slots=slots) + beside
    for number in rounds(quick=int((victim, phase) in KILLED_QUICKLY), full=20):
        with nothing_left(running(tmp_path, text)) as daemon:
            before = processes(daemon)
            with traffic(daemon) as asking, triton_grpc.InferenceServerClient(daemon.grpc) as client:
                asking.served(50)
                held = overloaded(daemon, client) if phase == "overload" else None
                if phase == "idle":
                    asking.end()
                elif phase == "model load":
                    threading.Thread(target=_load, args=(daemon.grpc,), daemon=True).start()
                elif phase == "drain":
                    daemon.process.send_signal(signal.SIGTERM)
                elif phase == "start":  # of one that takes another's place
                    before[victim][0].kill()
                    until("another", lambda d=daemon, b=before: set(processes(d)[victim]) - set(b[victim]))
                    (set(processes(daemon)[victim]) - set(before[victim])).pop().kill()
                for process in processes(daemon)[victim][number % 2 :][: int(phase != "start")]:
                    process.kill()
                begin = time.monotonic()
                if phase == "drain":
                    assert daemon.process.wait(WAIT_S) == 0
                else:
                    if phase != "idle":
                        asking.served(200)
                    until("all workers", lambda d=daemon, b=before: whole(d, b))
                    recovered(time.monotonic() - begin)
                if held is not None:
                    assert all(error is None or is_typed(error) for error in held.all())
            assert not asking.outcomes["wrong"]
            if phase == "drain":
                continue  # connections end then, and with them what was not accepted
            assert not asking.outcomes["lost"], asking.outcomes
            with traffic(daemon, asking.expected) as healed:
                healed.served(50)
