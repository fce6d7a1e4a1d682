"""What a loaded ONNX file holds: shapes, folded constants, mapped tables, the batch."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_protos import I64, external, model, node, port, rebuilt, run, saved
from run_kernels import run_graph

from veltair.compiler.onnx.constants import TABLE_BYTES
from veltair.compiler.onnx.dimensions.batch import MAX_BATCH
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.registry import write

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_MODELS = [
    *("densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("bvlc_alexnet", "vgg19", "zfnet512")),
]


@pytest.mark.parametrize("name", LIGHT_MODELS)
def test_the_light_models_load(name: str) -> None:
    loaded = load_model(LIGHT / f"light_{name}.onnx")
    assert loaded.inputs[0].shape == (1, 3, 224, 224)
    assert loaded.outputs[0].shape[:2] == (1, 1000)
    assert loaded.opset >= 17 and loaded.max_batch == 1
    assert not {"ConstantOfShape", "Constant", "Dropout", "Identity"} & {n.op_type for n in loaded.nodes}
    assert all(name in loaded.values for n in loaded.nodes for name in (*n.input, *n.output) if name)
    assert len({n.name for n in loaded.nodes}) == len(loaded.nodes)


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    """As ONNX Runtime takes them; what a branch reads from outside counts."""
    branch = helper.make_graph([node("Neg", "a", "y")], "branch", [], [onnx.ValueInfoProto(name="y")])
    nodes = [
        node("If", "c", "y", then_branch=branch, else_branch=branch),
        node("Relu", "s", "a"),
        node("Greater", "t zero", "c"),
        helper.make_node("ReduceSum", ["s"], ["t"], keepdims=0),
        node("Sin", "x", "s"),
    ]
    proto = model(nodes, constants=[numpy_helper.from_array(np.float32(0), "zero")])
    loaded = load_model(saved(tmp_path, proto))
    made = {value.name for value in loaded.inputs} | set(loaded.initializers)
    for each in loaded.nodes:
        assert made.issuperset(name for name in each.input if name)
        made.update(each.output)
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)}
    np.testing.assert_allclose(run_graph(lower(loaded, "fp32"), feeds, 1)[0], run(proto, feeds)[0], rtol=1e-5)


def test_batch_norm_is_folded_and_the_outputs_stay(tmp_path: Path) -> None:
    (path,) = write("mobilenet_v2", tmp_path / "m.onnx")
    loaded = load_model(path)
    assert {n.op_type for n in loaded.nodes} == {"Conv", "Clip", "Add", "GlobalAveragePool", "Flatten", "Gemm"}
    feeds = {"input": np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)}
    np.testing.assert_allclose(run(rebuilt(loaded, 1), feeds)[0], run(path, feeds)[0], rtol=1e-3, atol=1e-3)


def test_a_batch_norm_of_weights_alone_may_be_in_training_mode(tmp_path: Path) -> None:
    """PyTorch standardises the weights of NFNets and BiT so."""
    weights = np.random.default_rng(1).standard_normal((1, 4, 27)).astype(np.float32)
    ones, shape = np.ones(4, np.float32), np.array([4, 3, 3, 3])
    constants = {"w": weights, "ones": ones, "shape": shape}
    nodes = [
        node("Neg", "w", "v"),
        helper.make_node("ReduceMean", ["v"], ["mean"], "mean", axes=[0, 2], keepdims=0),
        helper.make_node(
            "BatchNormalization", ["v", "ones", "ones", "mean", "ones"], ["n", "m", "d"], "norm", training_mode=1
        ),
        node("Reshape", "n shape", "k"),
        node("Conv", "x k", "y"),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    path = saved(tmp_path, model(nodes, [port("x", ["n", 3, 5, 5])], [port("y", None)], tensors))
    loaded = load_model(path)
    assert [n.op_type for n in loaded.nodes] == ["Conv"]
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 3, 5, 5)).astype(np.float32)}
    expected = ort.InferenceSession(str(path)).run(None, feeds)  # its kernel differs where nothing is optimised
    np.testing.assert_allclose(run(rebuilt(loaded, 2), feeds)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_tables_stay_mapped_and_the_batch_is_symbolic(tmp_path: Path) -> None:
    shape = DlrmShape(tables=2, rows=TABLE_BYTES // 32, dim=8, lookups=3, max_batch=5)
    path, data = write("dlrm", tmp_path / "d.onnx", 0, shape)
    loaded = load_model(path)
    table = loaded.initializers["table_1"]
    assert isinstance(table, np.memmap) and not table.flags.writeable and table.filename == data
    assert loaded.max_batch == 5 and load_model(path, 9).max_batch == 9
    assert [s.shape for s in loaded.inputs] == [(-1, 13), (-1, 3), (-1, 3)]
    assert loaded.values["features"].shape == (-1, 3, 8) and loaded.values["probability"].shape == (-1, 1)
    assert loaded.values["table_1"].shape == (shape.rows, 8)
    rng = np.random.default_rng(0)
    feeds = {"dense": rng.standard_normal((4, 13)).astype(np.float32)}
    feeds |= {f"sparse_{i}": rng.integers(0, shape.rows, (4, 3)) for i in range(2)}
    np.testing.assert_allclose(run(rebuilt(loaded, 4), feeds)[0], run(path, feeds)[0], rtol=1e-5)


def test_a_table_read_by_another_operator_is_no_table(tmp_path: Path) -> None:
    big = numpy_helper.from_array(np.ones((TABLE_BYTES // 16, 4), np.float32), "w")
    nodes = [node("Gather", "w i", "rows"), node("ReduceSum", "w", "total", keepdims=0), node("Add", "rows total", "y")]
    loaded = load_model(saved(tmp_path, model(nodes, [port("i", ["n"], I64)], [port("y", ["n", 4])], [big])), 4)
    feeds = {"i": np.array([0, 5])}
    np.testing.assert_allclose(run(rebuilt(loaded, 2), feeds)[0], 1 + TABLE_BYTES / 4)


def test_a_dimension_may_be_a_multiple_of_the_batch(tmp_path: Path) -> None:
    pairs, back = (numpy_helper.from_array(np.array([-1, n]), f"{n}") for n in (2, 6))
    nodes = [node("Reshape", "x 2", "pairs"), node("Softmax", "pairs", "s"), node("Reshape", "s 6", "y")]
    loaded = load_model(saved(tmp_path, model(nodes, [port("x", ["n", 6])], [port("y", ["n", 6])], [pairs, back])))
    assert loaded.values["s"].shape == (-3, 2) and loaded.values["y"].shape == (-1, 6)
    assert loaded.max_batch == MAX_BATCH


def test_a_constant_read_inside_a_branch_survives(tmp_path: Path) -> None:
    then = helper.make_graph([node("Add", "x w", "a")], "then", [], [port("a")])
    other = helper.make_graph([node("Sub", "x w", "b")], "else", [], [port("b")])
    branch = node("If", "c", "y", then_branch=then, else_branch=other)
    loaded = load_model(saved(tmp_path, model([branch], [port("x"), port("c", (), TensorProto.BOOL)])))
    feeds = {"x": np.full((2, 4), 3, np.float32), "c": np.array(False)}
    np.testing.assert_array_equal(run(rebuilt(loaded, 1), feeds)[0], np.full((2, 4), 2))


def test_constants_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], [port("x"), port("w")], opset=8)
    proto.ir_version = 3
    assert [i.name for i in load_model(saved(tmp_path, proto)).inputs] == ["x"]


def test_external_constants_are_read_at_their_offset(tmp_path: Path) -> None:
    values = np.arange(16, dtype=np.float32)
    (tmp_path / "data.bin").write_bytes(values.tobytes())
    constant = node("Constant", "", "k", value=external([2, 4], location="data.bin", offset=0, length=32))
    weight = external([2, 4], location="data.bin", offset=32)
    proto = model([constant, node("Add", "x w", "s"), node("Add", "s k", "y")], constants=[weight])
    result = run(rebuilt(load_model(saved(tmp_path, proto)), 1), {"x": np.zeros((2, 4), np.float32)})[0]
    np.testing.assert_array_equal(result.ravel(), values[8:] + values[:8])


def test_an_output_may_come_without_its_shape_and_hand_an_input_through(tmp_path: Path) -> None:
    loaded = load_model(saved(tmp_path, model([node("Relu", "x", "y")], outputs=[port("y", None), port("x")])))
    assert [o.shape for o in loaded.outputs] == [(2, 4), (2, 4)]


@pytest.mark.parametrize("apart", [True, False])
def test_large_constants_stay_in_files_and_are_right(tmp_path: Path, apart: bool) -> None:
    weight = np.random.default_rng(5).standard_normal((600, 700)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(weight[0], "b")]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, d]) for n, d in (("x", 600), ("y", 700))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=apart, location="m.weights")
    loaded = load_model(tmp_path / "m.onnx")
    (found,) = (a for a in loaded.initializers.values() if a.shape == weight.shape)
    assert np.array_equal(found, weight)
    owner: Any = found
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)


@pytest.mark.parametrize(
    ("op", "attributes"), [("GroupNormalization", {"num_groups": 2}), ("MeanVarianceNormalization", {})]
)
def test_an_output_whose_shape_onnxs_inference_does_not_tell(tmp_path: Path, op: str, attributes: Any) -> None:
    """Nor does the file. ONNX Runtime knows it, and our own inference."""
    image, scale = ("n", 4, 6, 6), numpy_helper.from_array(np.ones(4, np.float32), "s")
    made = node(op, "x s s" if attributes else "x", "y", **attributes)
    proto = model([made], [port("x", image)], [port("y", None)], [scale] if attributes else [], opset=21)
    assert load_model(saved(tmp_path, proto), 4).outputs[0].shape == (-1, 4, 6, 6)


@pytest.mark.parametrize("stated", [None, ("n", 4), (9, 9), (-1, 4)])
def test_a_constant_that_is_an_input_has_the_shape_of_its_values(tmp_path: Path, stated: Any) -> None:
    proto = model([node("Add", "x w", "y")], [port("x"), port("w", stated)])
    loaded = load_model(saved(tmp_path, proto))
    assert [spec.name for spec in loaded.inputs] == ["x"]
    assert loaded.outputs[0].shape == (2, 4)
    assert loaded.max_batch == 1
