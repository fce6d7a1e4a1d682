"""Draining and ending the daemon, and configurations that it refuses."""

import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from example_models import LONG_TURNS, spin_state
from grpc_health.v1 import health_pb2, health_pb2_grpc
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


READY = ["/v2/health/ready", "/v2/models/spin/ready"]


def test_a_lame_duck_is_not_ready_and_serves(bounded: Path, tmp_path: Path, fronts: int) -> None:
    text = configuration(bounded, "spin", lame_duck_s=1000.0, drain_timeout_s=1000.0, fronts=fronts)
    with running(tmp_path, text) as daemon, grpc.insecure_channel(daemon.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        serving = health_pb2.HealthCheckResponse.SERVING

        def healthy() -> list[bool]:
            asked = [health_pb2.HealthCheckRequest(service=name) for name in ("", "spin")]
            return [health.Check(each, timeout=WAIT_S).status == serving for each in asked]

        with (
            triton_grpc.InferenceServerClient(daemon.grpc) as rpc,
            triton_http.InferenceServerClient(daemon.http) as http,
        ):
            clients = ((rpc, triton_grpc), (http, triton_http))
            assert [daemon.status(path) for path in READY] == [200, 200] and healthy() == [True, True]
            daemon.process.send_signal(signal.SIGTERM)
            until("not ready", lambda: daemon.status(READY[0]) == 503)
            assert [daemon.status(path) for path in READY] == [503, 503]
            assert not rpc.is_server_ready() and not rpc.is_model_ready("spin")
            until("not healthy", lambda: healthy() == [False, False])
            for _ in range(3):  # the first of them by way of Python, the others by a plan
                for client, module in clients:
                    assert client.infer("spin", spin(module, 3, 2)).as_numpy("state")[0] == spin_state(3, 2)
            assert daemon.status("/v2/health/live") == 200 and rpc.is_server_live()
            assert daemon.process.poll() is None
            answers: Queue[tuple[Any, Any]] = Queue()
            rpc.async_infer(
                "spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: answers.put((result, error))
            )
            until("a running query", lambda: daemon.metric("veltair_queries_running", tenant="spin") == 1)
            daemon.process.send_signal(signal.SIGTERM)
            _, error = answers.get(timeout=WAIT_S)
            assert error is not None
            assert daemon.process.wait(WAIT_S) == 0


def test_a_short_lame_duck_ends_with_a_drain(bounded: Path, tmp_path: Path) -> None:
    with running(tmp_path, configuration(bounded, "spin", lame_duck_s=0.05)) as daemon:
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(WAIT_S) == 0
        log = (tmp_path / "log").read_text()
        assert log.index("serving for 0.1 s more") < log.index("draining: ")


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
