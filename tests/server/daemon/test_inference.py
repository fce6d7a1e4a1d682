"""The daemon as a process of its own, asked by the stock tritonclient over HTTP and gRPC."""

import json
import os
import urllib.error
import urllib.request
from queue import Queue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shm
from example_models import SPIN_LAYERS, mlp_outputs, spin_state
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from running_daemon import Daemon, X, spin, tensor, until
from running_engine import WAIT_S
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as pb_grpc
from tritonclient.utils import InferenceServerException

from veltair.server.ipc.stages import ANSWER, STAGES

pytestmark = pytest.mark.slow


def test_health_and_metadata(http: Any, rpc: Any) -> None:
    for client in (http, rpc):
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("mlp") and client.is_model_ready("mlp", "1")
        assert not client.is_model_ready("nope") and not client.is_model_ready("mlp", "2")
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


def test_a_traced_response_lists_its_blocks(http: Any, rpc: Any) -> None:
    asked: dict[str, Any] = {"parameters": {"veltair_trace": True}, "priority": 2}
    over_http = http.infer("spin", spin(triton_http, 3, 5), **asked).get_response()["parameters"]
    over_grpc = rpc.infer("spin", spin(triton_grpc, 3, 5), **asked).get_response().parameters
    blocks_of_grpc = over_grpc["blocks"].string_param
    numbers_of_grpc = {name: value.int64_param for name, value in over_grpc.items() if name != "blocks"}
    for found in (over_http, numbers_of_grpc | {"blocks": blocks_of_grpc}):
        told = [f"{stage.name}_ns" for stage in STAGES[:ANSWER]]
        assert set(found) == {"priority", "tenant_priority", "queue_ns", "blocks", *told}
        assert (found["priority"], found["tenant_priority"]) == (2, 1)
        assert all(found[name] >= 0 for name in told)
        assert found["handoff_ns"] + found["wait_ns"] <= found["queue_ns"]
        assert found["queue_ns"] <= found["read_ns"] + found["handoff_ns"] + found["wait_ns"]
        served_blocks, execute_ns = json.loads(found["blocks"]), found["execute_ns"]
        assert [block["start"] for block in served_blocks] == [0, *(block["stop"] for block in served_blocks[:-1])]
        assert served_blocks[-1]["stop"] == SPIN_LAYERS
        assert sum(block["elapsed_ns"] for block in served_blocks) == execute_ns > 0


def test_stages_add_up_to_the_durations_that_are_counted(daemon: Daemon, http: Any, rpc: Any) -> None:
    def seconds(name: str, **labels: str) -> float:
        return daemon.metric(name, tenant="spin", **labels)

    def stages() -> dict[str, float]:
        return {stage.name: seconds("veltair_stage_seconds_total", stage=stage.name) for stage in STAGES}

    counted, before = seconds("veltair_request_duration_seconds_count"), stages()
    for seed in range(20):  # all but the first over gRPC are answered by an I/O thread
        rpc.infer("spin", spin(triton_grpc, 2, seed))
    http.infer("spin", spin(triton_http, 2, 1))
    until("all are counted", lambda: seconds("veltair_request_duration_seconds_count") == counted + 21)
    after = stages()
    assert all(after[name] >= before[name] for name in after)
    assert all(after[name] > before[name] for name in ("read", "handoff", "wait", "execute", "report", "answer"))
    assert sum(after.values()) == pytest.approx(seconds("veltair_request_duration_seconds_sum"), abs=1e-8)
    assert after["execute"] == pytest.approx(seconds("veltair_execution_seconds_sum"), abs=1e-8)
    queued = after["read"] + after["handoff"] + after["wait"]
    assert queued == pytest.approx(seconds("veltair_queue_wait_seconds_sum"), abs=1e-8)


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


def statistics(rpc: Any, model: str) -> Any:
    (found,) = rpc.get_inference_statistics(model).model_stats
    return found


def test_statistics(http: Any, rpc: Any) -> None:
    before = http.get_inference_statistics("mlp")["model_stats"][0]
    http.infer("mlp", [tensor(triton_http, "x", X, "FP32")])
    rpc.infer("mlp", [tensor(triton_grpc, "x", X, "FP32")])
    # A worker tells the front first: an answer may be here before the engine has counted its execution.
    until("two executions", lambda: statistics(rpc, "mlp").execution_count > before["execution_count"] + 1)
    after = statistics(rpc, "mlp")
    assert after.execution_count == before["execution_count"] + 2
    assert after.inference_count == before["inference_count"] + 2 * len(X)
    assert after.inference_stats.compute_infer.ns > before["inference_stats"]["compute_infer"]["ns"]
    executed = {each.batch_size: each.compute_infer.count for each in after.batch_stats}
    assert executed[len(X)] >= 2 and sum(executed.values()) == after.execution_count
    assert sum(size * count for size, count in executed.items()) == after.inference_count
    assert len(http.get_inference_statistics()["model_stats"]) == len(rpc.get_inference_statistics().model_stats) == 3


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


def test_a_stream_survives_an_error_of_a_message_with_many_numbers(daemon: Daemon) -> None:
    """They are parsed in another process; the error still says which request it belongs to."""
    count = 1 << 17
    rows = pb.ModelInferRequest.InferInputTensor(
        name="x", datatype="FP32", shape=[4, 16], contents=pb.InferTensorContents(fp32_contents=[1.0] * count)
    )
    wrong = pb.ModelInferRequest(model_name="mlp", id="wrong", inputs=[rows])
    nobody = pb.ModelInferRequest(model_name="nobody", id="nobody", inputs=[rows])
    good = pb.ModelInferRequest(model_name="mlp", id="good", inputs=[rows])
    good.inputs[0].contents.fp32_contents[:] = [1.0] * 64
    with grpc.insecure_channel(daemon.grpc) as channel:
        stream = pb_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([wrong, nobody, good]))
        answers = [(each.infer_response.id, each.infer_response.model_name, each.error_message) for each in stream]
    taken = f"input 'x': shape [4, 16] takes 64 elements, got {count}"
    assert answers == [("wrong", "mlp", taken), ("nobody", "nobody", taken), ("good", "mlp", "")]


def test_regions_of_cuda_memory_are_none(http: Any, rpc: Any) -> None:
    """Triton's examples list and unregister all regions of both kinds before they begin."""
    assert http.get_cuda_shared_memory_status() == []
    assert not rpc.get_cuda_shared_memory_status().regions
    for client in (http, rpc):
        client.unregister_cuda_shared_memory()
        client.unregister_cuda_shared_memory("tensors")
        with pytest.raises(InferenceServerException, match="no region 'tensors'"):
            client.get_cuda_shared_memory_status("tensors")


def test_health_and_reflection_services(daemon: Daemon) -> None:
    with grpc.insecure_channel(daemon.grpc) as channel:
        for name in ("", "inference.GRPCInferenceService"):
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
            assert check.status == health_pb2.HealthCheckResponse.SERVING
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        for version in ("v1alpha", "v1"):
            path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            read = reflection_pb2.ServerReflectionResponse.FromString
            (listed,) = channel.stream_stream(path, reflection_pb2.ServerReflectionRequest.SerializeToString, read)(
                iter([ask])
            )
            names = {service.name for service in listed.list_services_response.service}
            assert {"inference.GRPCInferenceService", "grpc.health.v1.Health"} <= names


def test_the_dashboard_shows_blocks(daemon: Daemon, http: Any) -> None:
    with urllib.request.urlopen(f"http://{daemon.http}/admin/events", timeout=WAIT_S) as stream:
        http.infer("mlp", [tensor(triton_http, "x", X, "FP32")])
        blocks: list[Any] = []
        while not any(block[0] == "mlp" for block in blocks):
            line = stream.readline()
            assert line
            if line.startswith(b"data: ") and (frame := json.loads(line[6:])).get("blocks"):
                blocks += frame["blocks"]
    assert all(begin < end for _, _, _, _, begin, end, *_ in blocks)
