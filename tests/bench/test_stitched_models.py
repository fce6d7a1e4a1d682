"""The memory-bound parts that the bench of stitched models compares."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from bench.kernels.memory_bound_parts import MemoryBoundPart, import_parts, memory_bound_parts, write_parts
from bench.kernels.stitched_models import verdicts
from bench.kernels.xla_parts import count_kernels
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.stitch.regions import import_region
from veltair.types import TensorSpec


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[MemoryBoundPart]:
    """Two equal parts with a product between them, one more behind both, and a comparison that a gate reads."""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 8]) for n in ("x", "y")]
    nodes = [
        helper.make_node("Exp", ["x"], ["e"]),
        helper.make_node("Softmax", ["e"], ["s"], axis=-1),
        helper.make_node("MatMul", ["s", "w"], ["p"]),
        helper.make_node("Exp", ["p"], ["q"]),
        helper.make_node("Softmax", ["q"], ["t"], axis=-1),
        helper.make_node("MatMul", ["t", "w"], ["u"]),
        helper.make_node("Mul", ["u", "s"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.eye(8, dtype=np.float32) * 2, "w")]
    graph = helper.make_graph(nodes, "model", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return memory_bound_parts(load_model(path, 4), batch=3)


def test_parts_lie_between_products_and_equal_ones_are_counted(parts: list[MemoryBoundPart]) -> None:
    assert [([node.op_type for node in part.nodes], part.count) for part in parts] == [
        (["Exp", "Softmax"], 2),
        (["Mul"], 1),
    ]
    assert [[port.shape for port in part.inputs] for part in parts] == [[(3, 8)], [(3, 8), (3, 8)]]


def test_parts_side_by_side_compute_what_they_did(parts: list[MemoryBoundPart], tmp_path: Path) -> None:
    write_parts(parts, tmp_path / "parts.onnx")
    session = ort.InferenceSession(str(tmp_path / "parts.onnx"), providers=["CPUExecutionProvider"])
    feeds = {port.name: np.ones(port.shape, np.float32) for part in parts for port in part.inputs}
    softmax, total = session.run(None, feeds)
    np.testing.assert_allclose(softmax, np.full((3, 8), 1 / 8), rtol=1e-6)
    np.testing.assert_array_equal(total, np.ones((3, 8)))


def test_each_part_is_imported_by_itself(parts: list[MemoryBoundPart]) -> None:
    nodes = [node for part in parts for node in part.nodes]
    values = {port.name: port for part in parts for port in (*part.inputs, *part.outputs)}
    inner = {op.output: op.shape for part in parts for op in part.ops}
    values |= {n: TensorSpec(n, "float32", shape) for n, shape in inner.items() if n not in values}
    inputs = [port.name for part in parts for port in part.inputs]
    outputs = [port.name for part in parts for port in part.outputs]
    found = import_parts(import_region, nodes, values, {}, inputs, outputs, 1, 17)
    assert [layer.name.partition("/")[0] for layer in found.layers] == ["p0", "p1"]


def test_kernels_of_xla_are_what_its_entry_computes() -> None:
    text = """HloModule a
%fused (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %e = f32[8]{0} exponential(%p)
}

ENTRY %main (x: f32[8]) -> (f32[8], f32[]) {
  %x = f32[8]{0} parameter(0)
  %c = f32[] constant(0)
  %f = f32[8]{0} fusion(f32[8]{0} %x), kind=kLoop, calls=%fused
  %r = f32[] reduce(f32[8]{0} %f, f32[] %c), dimensions={0}, to_apply=%sum
  %b = f32[2,4]{1,0} bitcast(f32[8]{0} %f)
  ROOT %t = (f32[8]{0}, f32[]) tuple(%f, %r)
}
"""
    assert count_kernels(text) == 2


def test_verdicts_name_each_bar() -> None:
    ms = {"chosen": 2.0, "packed": 2.1, "apart": 2.5, "off": 3.0, "onnxruntime": 1.9}
    parts = {
        "counts": [1, 2],
        "ms": {"chosen": 1.0, "off": 2.0, "onnxruntime": 3.0},
        "kernels": {"chosen": 3, "off": 6},
    }
    lines = verdicts({"ms": ms, "parts": parts})
    assert "MISSED" in lines[0]
    assert "XLA is not measured" in lines[-1]
    parts["ms"]["xla"], parts["kernels"]["xla"] = 1.5, 10
    lines = verdicts({"ms": ms | {"onnxruntime": 2.0}, "parts": parts})
    assert [line.rpartition(" ")[2] for line in (lines[0], *lines[2:])] == ["held"] * 3
