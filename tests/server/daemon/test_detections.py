"""A detector, whose answers have as many rows as it finds: over both protocols, into shared memory, one too large."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shared
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from running_daemon import Daemon, configuration, running, tensor
from tritonclient.utils import InferenceServerException

import veltair

pytestmark = pytest.mark.slow
BOXES, CLASSES, ROOM = 40, 3, 160
CLIENTS = [triton_http, triton_grpc]
random = np.random.default_rng(11)


def detector() -> onnx.ModelProto:
    """Of boxes with scores, those stay that are above a threshold and overlap no better one. It computes exactly."""
    constants: dict[str, Any] = {
        "most": np.array([BOXES]),
        "overlap": np.float32([0.4]),
        "threshold": np.float32([0.5]),
        "columns": np.array([0, 2]),
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["scores"]),
        helper.make_node("NonMaxSuppression", ["all", "scores", "most", "overlap", "threshold"], ["kept"]),
        helper.make_node("Gather", ["kept", "columns"], ["places"], axis=1),
        helper.make_node("GatherND", ["all", "places"], ["boxes"]),
    ]
    ports = {"boxes": (TensorProto.FLOAT, ["found", 4]), "kept": (TensorProto.INT64, ["found", 3])}
    ports["scores"] = (TensorProto.FLOAT, ["n", CLASSES, BOXES])
    graph = helper.make_graph(
        nodes,
        "detector",
        [
            helper.make_tensor_value_info("all", TensorProto.FLOAT, ["n", BOXES, 4]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", CLASSES, BOXES]),
        ],
        [helper.make_tensor_value_info(name, *port) for name, port in ports.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The folder of the artifact, and a reference."""
    folder, proto = tmp_path_factory.mktemp("detector"), detector()
    veltair.compile(proto, folder / "detector", trials=0, precision="fp32", max_batch=4, output_room=ROOM)
    return folder, onnxruntime.InferenceSession(proto.SerializeToString())


@pytest.fixture(scope="module")
def daemon(compiled: tuple[Path, Any], fronts: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    text = configuration(compiled[0], "detector", fronts=fronts, shared_memory=True)
    with running(tmp_path_factory.mktemp("daemon"), text.replace("qos_ms = 20.0", "qos_ms = 100000.0")) as daemon:
        yield daemon


Arrays = dict[str, NDArray[np.float32]]


def inputs(rows: int, likely: float) -> Arrays:
    """Boxes that do not overlap, of which about one in `1 / likely` has a score above the threshold."""
    left = np.arange(BOXES, dtype=np.float32)
    boxes = np.stack([np.zeros_like(left), left, np.ones_like(left), left + 0.9], axis=1)
    scores = random.random((rows, CLASSES, BOXES), np.float32) * np.float32(0.5) + np.float32(likely * 0.5)
    return {"all": np.stack([boxes] * rows), "x": scores}


def sent(module: Any, feeds: Arrays, **how: Any) -> list[Any]:
    return [tensor(module, name, array, "FP32", **how) for name, array in feeds.items()]


def compare(answer: Any, reference: Any, feeds: Arrays) -> int:
    """Returns how many boxes there are."""
    names = ["boxes", "kept", "scores"]
    for name, expected in zip(names, reference.run(names, feeds), strict=True):
        np.testing.assert_array_equal(answer.as_numpy(name), expected)
        assert answer.as_numpy(name).shape == expected.shape
    return len(answer.as_numpy("boxes"))


@pytest.mark.parametrize("module", CLIENTS, ids=["http", "grpc"])
def test_each_answer_has_the_shape_of_its_own(daemon: Daemon, compiled: tuple[Path, Any], module: Any) -> None:
    with module.InferenceServerClient(daemon.http if module is triton_http else daemon.grpc) as client:
        counts = set()
        for rows, likely in [(1, 0.2), (3, 0.1), (1, 0.0), (4, 0.05), (1, 0.2), (1, 0.3), (1, 0.0)]:
            feeds = inputs(rows, likely)
            counts.add(compare(client.infer("detector", sent(module, feeds)), compiled[1], feeds))
        assert 0 in counts and len(counts) > 2
        alone = client.infer("detector", sent(module, inputs(1, 0.2)), outputs=[module.InferRequestedOutput("kept")])
        assert alone.as_numpy("kept").shape[1] == 3 and alone.as_numpy("boxes") is None


def test_numbers_in_json(daemon: Daemon, compiled: tuple[Path, Any]) -> None:
    with triton_http.InferenceServerClient(daemon.http) as client:
        for likely in (0.2, 0.0):
            feeds = inputs(2, likely)
            given = sent(triton_http, feeds, binary_data=False)
            wanted = [triton_http.InferRequestedOutput(n, binary_data=False) for n in ("boxes", "kept", "scores")]
            compare(client.infer("detector", given, outputs=wanted), compiled[1], feeds)


@pytest.mark.parametrize("module", CLIENTS, ids=["http", "grpc"])
def test_an_answer_beyond_its_room_is_refused(daemon: Daemon, compiled: tuple[Path, Any], module: Any) -> None:
    with module.InferenceServerClient(daemon.http if module is triton_http else daemon.grpc) as client:
        for _ in range(2):
            size = BOXES * CLASSES * 4  # all stay
            with pytest.raises(InferenceServerException, match=rf"output 'boxes' has {size} .* at most {ROOM}"):
                client.infer("detector", sent(module, inputs(1, 1.1)))
            small = inputs(1, 0.1)
            compare(client.infer("detector", sent(module, small)), compiled[1], small)
    assert daemon.metric("veltair_requests_total", tenant="detector", outcome="invalid") >= 2


def test_into_shared_memory(daemon: Daemon, compiled: tuple[Path, Any]) -> None:
    feeds = inputs(1, 0.2)
    expected = compiled[1].run(["boxes"], feeds)[0]
    region = shared.create_shared_memory_region("boxes", "/veltair-test-boxes", expected.nbytes)
    try:
        with triton_grpc.InferenceServerClient(daemon.grpc) as client:
            client.register_system_shared_memory("boxes", "/veltair-test-boxes", expected.nbytes)
            wanted = triton_grpc.InferRequestedOutput("boxes")
            wanted.set_shared_memory("boxes", expected.nbytes)
            for _ in range(2):
                answer = client.infer("detector", sent(triton_grpc, feeds), outputs=[wanted])
                assert tuple(answer.get_output("boxes").shape) == expected.shape
                stored = shared.get_contents_as_numpy(region, np.float32, expected.shape)
                np.testing.assert_array_equal(stored, expected)
            client.unregister_system_shared_memory("boxes")
    finally:
        shared.destroy_shared_memory_region(region)


def test_metadata(daemon: Daemon) -> None:
    with triton_grpc.InferenceServerClient(daemon.grpc) as client:
        outputs = {port.name: list(port.shape) for port in client.get_model_metadata("detector").outputs}
        assert outputs == {"boxes": [-1, 4], "kept": [-1, 3], "scores": [-1, CLASSES, BOXES]}
        configured = client.get_model_config("detector").config
        assert configured.max_batch_size == 0
        assert {port.name: list(port.dims) for port in configured.output} == outputs
    with urllib.request.urlopen(f"http://{daemon.http}/admin/api/models/detector") as page:
        assert {port["name"]: port["shape"] for port in json.load(page)["outputs"]} == outputs
