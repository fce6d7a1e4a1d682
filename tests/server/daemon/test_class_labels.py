"""A classifier whose answers are labels: over both protocols, in JSON, in shared memory, and what is said of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import tritonclient.utils.shared_memory as shared
from onnx import TensorProto, helper, numpy_helper
from running_daemon import Daemon, configuration, running, tensor
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

import veltair

pytestmark = pytest.mark.slow
CLIENTS = [triton_http, triton_grpc]
NAMES = ["cat", "Größe", ""]
X = np.random.default_rng(3).standard_normal((4, 3), np.float32)
EXPECTED = np.array([NAMES[i].encode() for i in X.argmax(axis=1)], object)


def classifier() -> onnx.ModelProto:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=0),
        helper.make_node("Gather", ["names", "best"], ["label"]),
        helper.make_node("Relu", ["x"], ["scores"]),
    ]
    ports = {"label": (TensorProto.STRING, ["n"]), "scores": (TensorProto.FLOAT, ["n", 3])}
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info(name, *port) for name, port in ports.items()],
        [numpy_helper.from_array(np.array(NAMES, object), "names")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def daemon(fronts: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("classifier")
    veltair.compile(classifier(), folder / "classifier", trials=0, precision="fp32", max_batch=4)
    text = configuration(folder, "classifier", fronts=fronts, shared_memory=True)
    with running(tmp_path_factory.mktemp("daemon"), text.replace("qos_ms = 20.0", "qos_ms = 100000.0")) as daemon:
        yield daemon


def connected(daemon: Daemon, module: Any) -> Any:
    return module.InferenceServerClient(daemon.http if module is triton_http else daemon.grpc)


@pytest.mark.parametrize("module", CLIENTS, ids=["http", "grpc"])
def test_labels_of_each_query(daemon: Daemon, module: Any) -> None:
    with connected(daemon, module) as client:
        for rows in (1, 4, 2, 1, 1, 1):
            for start in range(4 - rows + 1):
                x = X[start : start + rows]
                answer = client.infer("classifier", [tensor(module, "x", x, "FP32")])
                assert answer.as_numpy("label").tolist() == EXPECTED[start : start + rows].tolist()
                np.testing.assert_array_equal(answer.as_numpy("scores"), np.maximum(x, 0))
        alone = client.infer(
            "classifier", [tensor(module, "x", X, "FP32")], outputs=[module.InferRequestedOutput("label")]
        )
        assert alone.as_numpy("label").tolist() == EXPECTED.tolist() and alone.as_numpy("scores") is None


def test_labels_in_json(daemon: Daemon) -> None:
    with triton_http.InferenceServerClient(daemon.http) as client:
        given = [tensor(triton_http, "x", X, "FP32", binary_data=False)]
        wanted = [triton_http.InferRequestedOutput("label", binary_data=False)]
        answer = client.infer("classifier", given, outputs=wanted).get_response()
        assert answer["outputs"][0] == {
            "name": "label",
            "datatype": "BYTES",
            "shape": [4],
            "data": [label.decode() for label in EXPECTED],
        }


@pytest.mark.parametrize("module", CLIENTS, ids=["http", "grpc"])
def test_labels_in_shared_memory(daemon: Daemon, module: Any) -> None:
    content = serialize_byte_tensor(EXPECTED).item()
    name, key = "labels", f"/veltair-test-labels-{module.__name__}"
    region = shared.create_shared_memory_region(name, key, len(content))
    try:
        with connected(daemon, module) as client:
            client.register_system_shared_memory(name, key, len(content))
            wanted = module.InferRequestedOutput("label")
            wanted.set_shared_memory(name, len(content))
            for _ in range(2):
                client.infer("classifier", [tensor(module, "x", X, "FP32")], outputs=[wanted])
                found = shared.get_contents_as_numpy(region, np.object_, [4])
                assert found.tolist() == EXPECTED.tolist()
            wanted.set_shared_memory(name, len(content) - 1)
            with pytest.raises(InferenceServerException, match=f"takes {len(content)} bytes"):
                client.infer("classifier", [tensor(module, "x", X, "FP32")], outputs=[wanted])
            client.unregister_system_shared_memory(name)
    finally:
        shared.destroy_shared_memory_region(region)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_labels_in_our_client(daemon: Daemon, scheme: str) -> None:
    with veltair.Client(f"{scheme}://{getattr(daemon, scheme)}") as client:
        assert client.infer("classifier", X)["label"].tolist() == EXPECTED.tolist()


def test_metadata(daemon: Daemon) -> None:
    with triton_http.InferenceServerClient(daemon.http) as client:
        outputs = {
            port["name"]: (port["datatype"], port["shape"])
            for port in client.get_model_metadata("classifier")["outputs"]
        }
        assert outputs == {"label": ("BYTES", [-1]), "scores": ("FP32", [-1, 3])}
        config = client.get_model_config("classifier")
        assert {port["name"]: port["data_type"] for port in config["output"]}["label"] == "TYPE_STRING"
        assert json.loads(config["parameters"]["labels"]["string_value"]) == {"label": NAMES}
