"""Triton as a peer: the configuration that it gets, and what its Python backend does with batched queries."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from example_manifest import make_manifest
from google.protobuf import json_format, text_format
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2

from bench.serving import triton
from bench.serving.triton_model import TritonPythonModel
from veltair.profiles.artifact.manifest import Port
from veltair.types import QoSTarget

QOS = QoSTarget(5_000_000, 0.95)
IDS, DENSE = Port("ids", "int64", (-1, 4), low=0, high=9), Port("dense", "float32", (-1, 2))
BATCHED = make_manifest(model="m", max_batch=8, inputs=(IDS, DENSE), outputs=(Port("y", "float32", (-1, 2)),))
FIXED = make_manifest(inputs=(Port("x", "float32", (1, 3)),), outputs=(Port("y", "float32", (1, 3)),))


def config_of(text: str) -> Any:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


def test_a_model_with_a_dynamic_batch_is_batched_without_delay() -> None:
    found = config_of(triton.model_config_text("tenant", BATCHED, QOS, {"engine": "openvino"}))
    assert (found.name, found.backend, found.platform, found.max_batch_size) == ("tenant", "python", "", 8)
    assert [(i.name, i.data_type, list(i.dims)) for i in found.input] == [
        ("ids", model_config_pb2.TYPE_INT64, [4]),
        ("dense", model_config_pb2.TYPE_FP32, [2]),
    ]
    (group,) = found.instance_group
    assert (group.kind, group.count) == (model_config_pb2.ModelInstanceGroup.KIND_CPU, 1)
    assert found.HasField("dynamic_batching")
    assert found.dynamic_batching.max_queue_delay_microseconds == 0
    assert found.parameters["engine"].string_value == "openvino"
    # The load generator draws ids from here, for the daemon and for Triton alike.
    assert json.loads(found.parameters["id_range"].string_value) == {"ids": [0, 9]}


def test_a_model_of_fixed_batch_keeps_its_shape_and_is_not_batched() -> None:
    found = config_of(triton.model_config_text("m", FIXED, QOS, {}))
    assert (found.max_batch_size, list(found.input[0].dims)) == (0, [1, 3])
    assert not found.HasField("dynamic_batching")


def test_free_ports_are_distinct_and_free() -> None:
    ports = triton.free_ports(3)
    assert len(set(ports)) == 3
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_the_wheel_is_missing_from_a_python_without_it() -> None:
    with pytest.raises(SystemExit, match=r"CONTRIBUTING\.md"):
        triton.TritonInstallation.of(sys.executable)


class Tensor:
    def __init__(self, name: str, values: Any) -> None:
        self.name, self.values = name, values

    def as_numpy(self) -> Any:
        return self.values


class Request:
    def __init__(self, **values: Any) -> None:
        self.tensors = {name: Tensor(name, array) for name, array in values.items()}


@pytest.fixture
def backend_utils(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton's stub offers to a model, as far as ours uses it."""
    module: Any = ModuleType("triton_python_backend_utils")
    module.Tensor = Tensor
    module.InferenceResponse = lambda output_tensors: {each.name: each.values for each in output_tensors}
    module.get_input_tensor_by_name = lambda request, name: request.tensors[name]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.usefixtures("backend_utils")
@pytest.mark.parametrize("engine", triton.ENGINES)
def test_batched_queries_are_one_run_and_each_gets_its_own_rows(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 2]) for name in ("dense", "y"))
    graph = helper.make_graph([helper.make_node("Add", ["dense", "dense"], ["y"])], "m", [x], [y])
    network = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), network)
    settings = {"network": str(network), "engine": engine, "threads": "1"}
    config = config_of(triton.model_config_text("m", BATCHED, QOS, settings))
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    model = TritonPythonModel()
    model.initialize({"model_config": text})
    one, three = np.float32([[1, 2]]), np.float32([[3, 4], [5, 6], [7, 8]])
    (alone,) = model.execute([Request(dense=one)])  # `ids` is asked of no query: the network does not read it
    first, second = model.execute([Request(dense=one), Request(dense=three)])
    np.testing.assert_array_equal(alone["y"], one * 2)
    np.testing.assert_array_equal(first["y"], one * 2)
    np.testing.assert_array_equal(second["y"], three * 2)
