"""Helpers of the tests: small ONNX models, saved, loaded, refused, and run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.folding.shape_folding import ROWS
from veltair.compiler.onnx.onnx_model import OnnxModel, load_model
from veltair.errors import ModelError

F, I64 = TensorProto.FLOAT, TensorProto.INT64
ONES = numpy_helper.from_array(np.ones((2, 4), np.float32), "w")


def port(name: str, shape: Any = (2, 4), kind: int = F) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"the {op}", **attributes)


def model(
    nodes: list[onnx.NodeProto], inputs: Any = None, outputs: Any = None, constants: Any = (ONES,), opset: int = 17
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs or [port("x")], outputs or [port("y")], list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def adding(weight: TensorProto) -> onnx.ModelProto:
    return model([node("Add", "x w", "y")], constants=[weight])


def external(dims: list[int], kind: int = F, **place: Any) -> TensorProto:
    tensor = TensorProto(name="w", data_type=kind, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def saved(folder: Path, proto: onnx.ModelProto | bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(proto if isinstance(proto, bytes) else proto.SerializeToString())
    return path


def run(proto: onnx.ModelProto | Path, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = str(proto) if isinstance(proto, Path) else proto.SerializeToString()
    results: list[Any] = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    return results


def rebuilt(loaded: OnnxModel, batch: int) -> onnx.ModelProto:
    """The loaded model as ONNX again, from what a reader of it sees."""
    ports = []
    for specs in (loaded.inputs, loaded.outputs):
        kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)) for s in specs]
        shapes = [[-d * batch if d < 0 else d for d in s.shape] for s in specs]
        ports.append([port(s.name, shape, kind) for s, shape, kind in zip(specs, shapes, kinds, strict=True)])
    constants = dict(loaded.initializers)
    for rows in (n for n in loaded.nodes if n.op_type == ROWS):
        (output,), table = rows.output, constants[rows.input[0]]
        constants[output] = np.resize(table, [-d * batch if d < 0 else d for d in loaded.values[output].shape])
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    nodes = [n for n in loaded.nodes if n.op_type != ROWS]
    return model(nodes, *ports, tensors, loaded.opset)


def refuse(folder: Path, proto: onnx.ModelProto | bytes, text: str) -> None:
    path = saved(folder, proto)
    before = sorted(folder.iterdir())
    with pytest.raises(ModelError, match=text) as raised:
        load_model(path)
    assert str(path) in str(raised.value)
    assert sorted(folder.iterdir()) == before
