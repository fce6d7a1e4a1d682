"""Draining and ending the daemon, and configurations that it refuses."""

import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
from example_models import LONG_TURNS
from running_daemon import configuration, running, serve, spin, until
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow


def test_sigterm_answers_what_was_accepted(bounded: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(bounded, "spin")) as daemon:
        answers: Queue[tuple[Any, Any]] = Queue()
        with (
            triton_grpc.InferenceServerClient(daemon.grpc) as client,
            urllib.request.urlopen(f"http://{daemon.http}/admin/events", timeout=WAIT_S) as stream,
        ):
            turns = LONG_TURNS // 200
            for _ in range(4):
                client.async_infer(
                    "spin", spin(triton_grpc, turns, 1), lambda result, error: answers.put((result, error))
                )
            until("all four to be accepted", lambda: daemon.metric("veltair_queries_held") == 4)
            daemon.process.send_signal(signal.SIGTERM)
            for _ in range(4):
                result, error = answers.get(timeout=WAIT_S)
                assert error is None and result.as_numpy("state").shape == (1,)
            assert daemon.process.wait(WAIT_S) == 0
            stream.read()  # an open dashboard does not keep the daemon; its stream ends


def test_a_draining_daemon_refuses_and_a_second_signal_cuts(bounded: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(bounded, "spin", drain_timeout_s=1000.0)) as daemon:
        answers: Queue[tuple[Any, Any]] = Queue()
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            client.async_infer(
                "spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: answers.put((result, error))
            )
            until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
            daemon.process.send_signal(signal.SIGTERM)
            until("not ready", lambda: not client.is_server_ready())
            with pytest.raises(InferenceServerException) as caught:
                client.infer("spin", spin(triton_grpc, 1, 1))
            assert caught.value.status() == "StatusCode.UNAVAILABLE"
            with pytest.raises(urllib.error.HTTPError) as unready:
                urllib.request.urlopen(f"http://{daemon.http}/v2/health/ready")
            assert unready.value.code == 503 and unready.value.headers["Retry-After"]
            unready.value.close()
            assert daemon.process.poll() is None
            daemon.process.send_signal(signal.SIGTERM)
            _, error = answers.get(timeout=WAIT_S)
            assert error is not None
            assert daemon.process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("workers", "wrokers"), "wrokers"),
        (lambda text: text.replace('http = "127.0.0.1:0"', 'http = "127.0.0.1"'), "server.http"),
        (lambda text: text.replace('http = "127.0.0.1:0"', 'http = "192.0.2.1:1"'), "cannot listen on 192.0.2.1:1"),
        (lambda text: text.replace('grpc = "127.0.0.1:0"', 'grpc = "192.0.2.1:1"'), "cannot listen on 192.0.2.1:1"),
        (lambda text: text.replace("/mlp", "/nothing"), "no model artifact there"),
        (lambda text: text + "[[", "serve.toml"),
    ],
)
def test_a_bad_configuration_is_exit_code_2(
    bounded: Path, tmp_path: Path, change: Callable[[str], str], message: str
) -> None:
    process = serve(tmp_path, change(configuration(bounded, "mlp")))
    out, log = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert out == ""
    assert log.splitlines()[-1].startswith("veltair serve: ") and message in log.splitlines()[-1]
