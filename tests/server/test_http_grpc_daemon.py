"""The whole daemon as a process of its own, asked by the stock tritonclient over HTTP and gRPC."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import msgspec
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc
from tritonclient.utils import InferenceServerException

from veltair.profiles.artifact.artifact_folder import MANIFEST
from veltair.profiles.artifact.manifest import Manifest

from .conftest import LONG_TURNS, SPIN_LAYERS, WAIT_S, mlp_outputs, spin_state

pytestmark = pytest.mark.slow

SERVE = """
import argparse, sys
from veltair.commands import serve as command
parser = argparse.ArgumentParser()
command.add_arguments(parser)
sys.exit(command.run(parser.parse_args()))
"""


@dataclass
class Daemon:
    process: subprocess.Popen[str]
    http: str
    grpc: str

    def metric(self, name: str, **labels: str) -> float:
        with urllib.request.urlopen(f"http://{self.http}/metrics") as page:
            for line in page.read().decode().splitlines():
                series, _, value = line.rpartition(" ")
                if series.startswith(name) and all(f'{k}="{v}"' in series for k, v in labels.items()):
                    return float(value)
        raise AssertionError(f"no {name} with {labels}")


def serve(folder: Path, text: str, log: Any = subprocess.PIPE) -> subprocess.Popen[str]:
    path = folder / "serve.toml"
    path.write_text(text)
    command = [sys.executable, "-c", SERVE, str(path), "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)


@contextmanager
def running(folder: Path, text: str) -> Iterator[Daemon]:
    with (folder / "log").open("w") as log:
        process = serve(folder, text, log)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, (folder / "log").read_text()
    where = json.loads(line)
    assert where.pop("ready") is True
    try:
        yield Daemon(process, **where)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        process.stdout.close()


def configuration(artifacts: Path, *names: str, **server: Any) -> str:
    options = "\n".join(
        f"{key} = {json.dumps(value)}" for key, value in ({"workers": 2, "policy": "veltair-full"} | server).items()
    )
    tenants = "\n".join(f'[[tenants]]\nname = "{n}"\nartifact = "{artifacts / n}"\nqos_ms = 20.0' for n in names)
    return f'[server]\nhttp = "127.0.0.1:0"\ngrpc = "127.0.0.1:0"\n{options}\n{tenants}\n'


@pytest.fixture(scope="module")
def bounded(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts, and one more: spin with ids, `seed` from 0 to 99."""
    folder = tmp_path_factory.mktemp("bounded")
    for name in ("mlp", "spin", "ranged"):
        target = folder / name
        target.mkdir()
        for file in (artifacts / ("spin" if name == "ranged" else name)).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    path = folder / "ranged" / MANIFEST
    manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    inputs = tuple(
        msgspec.structs.replace(port, low=0, high=99) if port.name == "seed" else port for port in manifest.inputs
    )
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(manifest, model="ranged", inputs=inputs)))
    return folder


@pytest.fixture(scope="module")
def daemon(bounded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(bounded, "mlp", "spin", "ranged", body_limit_mb=4, shared_memory=True)
    with running(tmp_path_factory.mktemp("daemon"), text) as started:
        yield started


X = np.random.default_rng(3).standard_normal((5, 16), dtype=np.float32)


def tensor(module: Any, name: str, values: Any, datatype: str, **how: Any) -> Any:
    entry = module.InferInput(name, list(values.shape), datatype)
    entry.set_data_from_numpy(values, **how)
    return entry


def spin(module: Any, turns: int, seed: int) -> list[Any]:
    one = [("turns", turns), ("seed", seed)]
    return [tensor(module, name, np.array([value], np.int32), "INT32") for name, value in one]


def test_health_and_metadata(http: Any, rpc: Any) -> None:
    for client in (http, rpc):
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("mlp") and client.is_model_ready("mlp", "1")
    assert not http.is_model_ready("nope")
    with pytest.raises(InferenceServerException, match="unknown model 'nope'"):
        rpc.is_model_ready("nope")
    assert http.get_server_metadata()["name"] == rpc.get_server_metadata().name == "veltair"
    assert http.get_server_metadata() == rpc.get_server_metadata(as_json=True)
    as_json = rpc.get_model_metadata("mlp", as_json=True)
    assert as_json["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "16"]}]
    assert http.get_model_metadata("mlp")["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [-1, 8]}]
    index = [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in ("mlp", "spin", "ranged")]
    assert http.get_model_repository_index() == index
    assert [m.name for m in rpc.get_model_repository_index().models] == ["mlp", "spin", "ranged"]


def test_configuration(http: Any, rpc: Any) -> None:
    over_http, over_grpc = http.get_model_config("ranged"), rpc.get_model_config("ranged").config
    assert over_http["max_batch_size"] == over_grpc.max_batch_size == 0
    assert over_grpc.input[0].dims == [1]
    ids = {"seed": [0, 99]}
    assert json.loads(over_http["parameters"]["id_range"]["string_value"]) == ids
    assert json.loads(over_grpc.parameters["id_range"].string_value) == ids
    assert http.get_model_config("mlp")["max_batch_size"] == 8
    with pytest.raises(InferenceServerException, match="no version '7'"):
        http.get_model_config("mlp", "7")


@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_infer_over_http(http: Any, binary: bool, compression: str | None) -> None:
    result = http.infer(
        "mlp",
        [tensor(triton_http, "x", X, "FP32", binary_data=binary)],
        outputs=[triton_http.InferRequestedOutput("y", binary_data=not binary)],
        request_id="r1",
        request_compression_algorithm=compression,
        response_compression_algorithm=compression,
    )
    np.testing.assert_allclose(result.as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    assert result.get_response()["id"] == "r1"


def test_infer_over_grpc(rpc: Any) -> None:
    result = rpc.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")], request_id="r1", model_version="1")
    np.testing.assert_allclose(result.as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    assert result.get_response().id == "r1"
    result = rpc.infer("spin", spin(triton_grpc, 3, 5), outputs=[triton_grpc.InferRequestedOutput("state")])
    assert result.as_numpy("state").tolist() == [spin_state(3, 5)]


def test_typed_contents_over_grpc(daemon: Daemon) -> None:
    request = pb.ModelInferRequest(model_name="mlp")
    request.inputs.add(name="x", datatype="FP32", shape=X.shape).contents.fp32_contents.extend(X.reshape(-1).tolist())
    with grpc.insecure_channel(daemon.grpc) as channel:
        response = pb_grpc.GRPCInferenceServiceStub(channel).ModelInfer(request)
    assert not response.outputs[0].HasField("contents")
    y = np.frombuffer(response.raw_output_contents[0], np.float32).reshape(response.outputs[0].shape)
    np.testing.assert_allclose(y, mlp_outputs(X), rtol=1e-4, atol=1e-4)


def test_the_answer_tells_of_its_blocks(http: Any, rpc: Any) -> None:
    asked = {"veltair_trace": True}
    over_http = http.infer("spin", spin(triton_http, 3, 5), parameters=asked).get_response()["parameters"]
    over_grpc = rpc.infer("spin", spin(triton_grpc, 3, 5), parameters=asked).get_response().parameters
    for blocks, execute_ns in (
        (over_http["blocks"], over_http["execute_ns"]),
        (over_grpc["blocks"].string_param, over_grpc["execute_ns"].int64_param),
    ):
        told = json.loads(blocks)
        assert [block["start"] for block in told] == [0, *(block["stop"] for block in told[:-1])]
        assert told[-1]["stop"] == SPIN_LAYERS
        assert sum(block["elapsed_ns"] for block in told) == execute_ns > 0


def test_many_at_once(http: Any, rpc: Any) -> None:
    over_http = [http.async_infer("mlp", [tensor(triton_http, "x", X, "FP32")]) for _ in range(8)]
    answers: Queue[tuple[Any, Any]] = Queue()
    for seed in range(8):
        rpc.async_infer(
            "spin", spin(triton_grpc, 2, seed), lambda result, error: answers.put((result, error)), request_id=str(seed)
        )
    for pending in over_http:
        np.testing.assert_allclose(pending.get_result().as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)
    for _ in range(8):
        result, error = answers.get(timeout=WAIT_S)
        assert error is None
        assert result.as_numpy("state")[0] == spin_state(2, int(result.get_response().id))


def test_a_stream_answers_in_order_and_survives_an_error(rpc: Any) -> None:
    answers: Queue[tuple[Any, Any]] = Queue()
    rpc.start_stream(lambda result, error: answers.put((result, error)))
    rpc.async_stream_infer("spin", spin(triton_grpc, 2, 1), request_id="0")
    rpc.async_stream_infer("nope", spin(triton_grpc, 2, 1), request_id="1")
    rpc.async_stream_infer("spin", spin(triton_grpc, 2, 3), request_id="2", enable_empty_final_response=True)
    result, error = answers.get(timeout=WAIT_S)
    assert error is None and result.as_numpy("state")[0] == spin_state(2, 1)
    result, error = answers.get(timeout=WAIT_S)
    assert result is None and "unknown model 'nope'" in str(error)
    result, error = answers.get(timeout=WAIT_S)
    assert error is None and result.as_numpy("state")[0] == spin_state(2, 3)
    assert result.get_response().parameters["triton_final_response"].bool_param
    rpc.stop_stream()


def test_statistics(http: Any, rpc: Any) -> None:
    before = http.get_inference_statistics("mlp")["model_stats"][0]
    http.infer("mlp", [tensor(triton_http, "x", X, "FP32")])
    rpc.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")])
    (after,) = rpc.get_inference_statistics("mlp").model_stats
    assert after.execution_count == before["execution_count"] + 2
    assert after.inference_count == before["inference_count"] + 2 * len(X)
    assert after.inference_stats.compute_infer.ns > before["inference_stats"]["compute_infer"]["ns"]
    assert len(http.get_inference_statistics()["model_stats"]) == len(rpc.get_inference_statistics().model_stats) == 3


def bytes_tensor(module: Any) -> list[Any]:
    return [tensor(module, "x", np.array([[b"a"] * 16], object), "BYTES")]


BAD: dict[str, tuple[str, Callable[[Any], list[Any]], int, str, str]] = {
    "unknown model": ("nope", lambda m: spin(m, 1, 1), 404, "NOT_FOUND", "unknown model 'nope'"),
    "bytes": ("mlp", bytes_tensor, 400, "INVALID_ARGUMENT", "'x' is FP32, got 'BYTES'"),
    "dtype": ("mlp", lambda m: [tensor(m, "x", X.astype("f8"), "FP64")], 400, "INVALID_ARGUMENT", "FP64"),
    "name": ("mlp", lambda m: [tensor(m, "w", X, "FP32")], 400, "INVALID_ARGUMENT", "no input 'w'"),
    "missing": ("spin", lambda m: spin(m, 1, 1)[:1], 400, "INVALID_ARGUMENT", "'seed' is missing"),
    "twice": ("spin", lambda m: [*spin(m, 1, 1), spin(m, 1, 1)[0]], 400, "INVALID_ARGUMENT", "given twice"),
    "shape": ("mlp", lambda m: [tensor(m, "x", X[:, :9].copy(), "FP32")], 400, "INVALID_ARGUMENT", "got [5, 9]"),
    "batch": ("mlp", lambda m: [tensor(m, "x", np.tile(X, (2, 1)), "FP32")], 400, "INVALID_ARGUMENT", "got [10, 16]"),
    "batch 0": ("mlp", lambda m: [tensor(m, "x", X[:0], "FP32")], 400, "INVALID_ARGUMENT", "got [0, 16]"),
    "id -1": ("ranged", lambda m: spin(m, 1, -1), 400, "INVALID_ARGUMENT", "has -1 at [0]; ids go from 0 to 99"),
    "id past the end": ("ranged", lambda m: spin(m, 1, 100), 400, "INVALID_ARGUMENT", "has 100 at [0]"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_and_then_a_good_one(http: Any, rpc: Any, case: str) -> None:
    model, inputs, status, code, message = BAD[case]
    for client, module, expected in ((http, triton_http, str(status)), (rpc, triton_grpc, f"StatusCode.{code}")):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, inputs(module))
        assert caught.value.status() == expected
        assert message in caught.value.message()
        good = client.infer("ranged", spin(module, 1, 99))
        assert good.as_numpy("state")[0] == spin_state(1, 99)


def test_what_is_not_served(http: Any, rpc: Any) -> None:
    refused = [
        lambda c: c.load_model("mlp"),
        lambda c: c.unload_model("mlp"),
        lambda c: c.get_cuda_shared_memory_status(),
        lambda c: c.get_trace_settings(),
        lambda c: c.get_log_settings(),
    ]
    for call in refused:
        for client, expected in ((http, "501"), (rpc, "StatusCode.UNIMPLEMENTED")):
            with pytest.raises(InferenceServerException) as caught:
                call(client)
            assert caught.value.status() == expected


@pytest.fixture
def memory() -> Iterator[Any]:
    """320 bytes of inputs, 160 of outputs."""
    handle = shm.create_shared_memory_region("tensors", f"veltair-test-{os.getpid()}", 480)
    yield handle
    shm.destroy_shared_memory_region(handle)


def test_tensors_in_shared_memory(http: Any, rpc: Any, memory: Any) -> None:
    shm.set_shared_memory_region(memory, [X])
    expected = mlp_outputs(X)
    for client, module in ((http, triton_http), (rpc, triton_grpc)):
        assert "system_shared_memory" in str(client.get_server_metadata())
        client.register_system_shared_memory("tensors", f"veltair-test-{os.getpid()}", 480)
        assert f"veltair-test-{os.getpid()}" in str(client.get_system_shared_memory_status())
        x = module.InferInput("x", [5, 16], "FP32")
        x.set_shared_memory("tensors", 320)
        np.testing.assert_allclose(client.infer("mlp", [x]).as_numpy("y"), expected, rtol=1e-5)
        y = module.InferRequestedOutput("y")
        y.set_shared_memory("tensors", expected.nbytes, 320)
        result = client.infer("mlp", [x], outputs=[y])
        np.testing.assert_allclose(
            shm.get_contents_as_numpy(memory, np.float32, expected.shape, 320), expected, rtol=1e-5
        )
        assert "tensors" in str(result.get_output("y"))
        x.set_shared_memory("tensors", 320, 168)  # to the end and 8 bytes beyond
        with pytest.raises(InferenceServerException, match="outside of region 'tensors'"):
            client.infer("mlp", [x])
        client.unregister_system_shared_memory("tensors")
        with pytest.raises(InferenceServerException, match="no region 'tensors'"):
            client.infer("mlp", [x])


def test_large_bodies(daemon: Daemon, http: Any, rpc: Any) -> None:
    huge = np.zeros((1 << 17, 16), np.float32)  # 8 MB, 4 are allowed
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("mlp", [tensor(triton_grpc, "x", huge, "FP32")])
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    with socket.create_connection(daemon.http.split(":"), WAIT_S) as client:
        client.sendall(b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
        answer = client.makefile("rb").read()  # to the end: it closes, no byte of the body was needed
    assert answer.startswith(b"HTTP/1.1 413 ") and b'{"error":' in answer
    padded = {"note": "." * (1 << 20)}  # parsed by the child process
    result = http.infer("mlp", [tensor(triton_http, "x", X, "FP32", binary_data=False)], parameters=padded)
    np.testing.assert_allclose(result.as_numpy("y"), mlp_outputs(X), rtol=1e-4, atol=1e-4)


GARBAGE = [
    b"hello\r\n\r\n",
    b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
    b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v2/models/mlp/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{",
    b"POST /v2/models/%00/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}",
    os.urandom(64) + b"\r\n\r\n",
]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_on_the_wire_harms_nobody(daemon: Daemon, http: Any, garbage: bytes) -> None:
    for address in (daemon.http, daemon.grpc):
        with socket.create_connection(address.split(":"), WAIT_S) as client:
            client.sendall(garbage)
    assert http.infer("mlp", [tensor(triton_http, "x", X, "FP32")]).as_numpy("y").shape == (5, 8)
    assert daemon.process.poll() is None


def until(what: str, condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < give_up, f"waited {WAIT_S} s for: {what}"
        time.sleep(0.01)


def test_clients_that_leave_cancel_their_queries(daemon: Daemon, rpc: Any) -> None:
    def cancelled() -> float:
        return daemon.metric("veltair_requests_total", tenant="spin", outcome="cancelled")

    def idle() -> bool:
        return daemon.metric("veltair_queries_running", tenant="spin") == 0

    before = cancelled()
    call = rpc.async_infer("spin", spin(triton_grpc, LONG_TURNS, 1), lambda result, error: None)
    until("a running query", lambda: not idle())
    call.cancel()
    until("the gRPC call to be cancelled", lambda: cancelled() == before + 1 and idle())

    inputs = [
        {"name": name, "shape": [1], "datatype": "INT32", "data": [value]}
        for name, value in (("turns", LONG_TURNS), ("seed", 1))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    with socket.create_connection(daemon.http.split(":"), WAIT_S) as client:
        head = f"POST /v2/models/spin/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        until("a running query", lambda: not idle())
    until("the HTTP request to be cancelled", lambda: cancelled() == before + 2 and idle())


def test_timeouts(http: Any, rpc: Any) -> None:
    with pytest.raises(InferenceServerException) as caught:
        http.infer("spin", spin(triton_http, LONG_TURNS, 1), timeout=100_000)
    assert caught.value.status() == "504" and "deadline" in caught.value.message()
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("spin", spin(triton_grpc, LONG_TURNS, 1), timeout=100_000)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED" and "deadline" in caught.value.message()
    with pytest.raises(InferenceServerException) as caught:
        rpc.infer("spin", spin(triton_grpc, LONG_TURNS, 1), client_timeout=0.1)
    assert caught.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_health_and_reflection_services(daemon: Daemon) -> None:
    with grpc.insecure_channel(daemon.grpc) as channel:
        for name in ("", "inference.GRPCInferenceService"):
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
            assert check.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        (listed,) = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]))
    names = {service.name for service in listed.list_services_response.service}
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


def test_the_dashboard_is_told_of_blocks(daemon: Daemon, http: Any) -> None:
    with urllib.request.urlopen(f"http://{daemon.http}/admin/events", timeout=WAIT_S) as stream:
        http.infer("mlp", [tensor(triton_http, "x", X, "FP32")])
        blocks: list[Any] = []
        while not any(block[0] == "mlp" for block in blocks):
            line = stream.readline()
            assert line
            if line.startswith(b"data: ") and (frame := json.loads(line[6:])).get("blocks"):
                blocks += frame["blocks"]
    assert all(begin < end for _, _, _, _, begin, end, *_ in blocks)


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
