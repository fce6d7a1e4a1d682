"""What comes in through an ONNX file, and what is turned away at the door."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from veltair.compiler.onnx.constants import TABLE_BYTES
from veltair.compiler.onnx.onnx_model import MAX_BATCH, OnnxModel, load
from veltair.errors import ModelError
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.registry import write

F, I64 = TensorProto.FLOAT, TensorProto.INT64
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LARGE = ("bvlc_alexnet", "vgg19", "zfnet512")
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
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in loaded.initializers.items()]
    return model(list(loaded.nodes), *ports, constants, loaded.opset)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in (
        "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
        "zfnet512")]
)  # fmt: skip
def test_the_light_models_load(name: str) -> None:
    loaded = load(LIGHT / f"light_{name}.onnx")
    assert loaded.inputs[0].shape == (1, 3, 224, 224)
    assert loaded.outputs[0].shape[:2] == (1, 1000)
    assert loaded.opset >= 17 and loaded.max_batch == 1
    assert not {"ConstantOfShape", "Constant", "Dropout", "Identity"} & {n.op_type for n in loaded.nodes}
    assert all(name in loaded.values for n in loaded.nodes for name in (*n.input, *n.output) if name)
    assert len({n.name for n in loaded.nodes}) == len(loaded.nodes)


def test_batch_norm_is_folded_and_the_outputs_stay(tmp_path: Path) -> None:
    (path,) = write("mobilenet_v2", tmp_path / "m.onnx")
    loaded = load(path)
    assert {n.op_type for n in loaded.nodes} == {"Conv", "Clip", "Add", "GlobalAveragePool", "Flatten", "Gemm"}
    feeds = {"input": np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)}
    np.testing.assert_allclose(run(rebuilt(loaded, 1), feeds)[0], run(path, feeds)[0], rtol=1e-3, atol=1e-3)


def test_tables_stay_mapped_and_the_batch_is_symbolic(tmp_path: Path) -> None:
    shape = DlrmShape(tables=2, rows=TABLE_BYTES // 32, dim=8, lookups=3, max_batch=5)
    path, data = write("dlrm", tmp_path / "d.onnx", 0, shape)
    loaded = load(path)
    table = loaded.initializers["table_1"]
    assert isinstance(table, np.memmap) and not table.flags.writeable and table.filename == data
    assert loaded.max_batch == 5 and load(path, 9).max_batch == 9
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
    loaded = load(saved(tmp_path, model(nodes, [port("i", ["n"], I64)], [port("y", ["n", 4])], [big])), 4)
    feeds = {"i": np.array([0, 5])}
    np.testing.assert_allclose(run(rebuilt(loaded, 2), feeds)[0], 1 + TABLE_BYTES / 4)


def test_a_dimension_may_be_a_multiple_of_the_batch(tmp_path: Path) -> None:
    pairs, back = (numpy_helper.from_array(np.array([-1, n]), f"{n}") for n in (2, 6))
    nodes = [node("Reshape", "x 2", "pairs"), node("Softmax", "pairs", "s"), node("Reshape", "s 6", "y")]
    loaded = load(saved(tmp_path, model(nodes, [port("x", ["n", 6])], [port("y", ["n", 6])], [pairs, back])))
    assert loaded.values["s"].shape == (-3, 2) and loaded.values["y"].shape == (-1, 6)
    assert loaded.max_batch == MAX_BATCH


def test_a_dimension_that_grows_otherwise_is_refused(tmp_path: Path) -> None:
    square = model([node("Transpose", "x", "t"), node("MatMul", "x t", "m")], [port("x", ["n", 4])], [port("m", None)])
    refuse(tmp_path, square, "'m' has shape .-1, -1.; expected the batch alone")
    ragged = model([node("Concat", "x w", "y", axis=0)], [port("x", ["n", 4])], [port("y", None)])
    refuse(tmp_path, ragged, "'y': a dimension grows with the batch, but not in proportion")


def test_a_constant_read_inside_a_branch_survives(tmp_path: Path) -> None:
    then = helper.make_graph([node("Add", "x w", "a")], "then", [], [port("a")])
    other = helper.make_graph([node("Sub", "x w", "b")], "else", [], [port("b")])
    branch = node("If", "c", "y", then_branch=then, else_branch=other)
    loaded = load(saved(tmp_path, model([branch], [port("x"), port("c", (), TensorProto.BOOL)])))
    feeds = {"x": np.full((2, 4), 3, np.float32), "c": np.array(False)}
    np.testing.assert_array_equal(run(rebuilt(loaded, 1), feeds)[0], np.full((2, 4), 2))


def test_constants_listed_as_inputs_are_no_inputs(tmp_path: Path) -> None:
    proto = model([node("Add", "x w", "y")], [port("x"), port("w")], opset=8)
    proto.ir_version = 3
    assert [i.name for i in load(saved(tmp_path, proto)).inputs] == ["x"]


def test_external_constants_are_read_at_their_offset(tmp_path: Path) -> None:
    values = np.arange(16, dtype=np.float32)
    (tmp_path / "data.bin").write_bytes(values.tobytes())
    constant = node("Constant", "", "k", value=external([2, 4], location="data.bin", offset=0, length=32))
    weight = external([2, 4], location="data.bin", offset=32)
    proto = model([constant, node("Add", "x w", "s"), node("Add", "s k", "y")], constants=[weight])
    result = run(rebuilt(load(saved(tmp_path, proto)), 1), {"x": np.zeros((2, 4), np.float32)})[0]
    np.testing.assert_array_equal(result.ravel(), values[8:] + values[:8])


def test_an_output_may_come_without_its_shape_and_hand_an_input_through(tmp_path: Path) -> None:
    loaded = load(saved(tmp_path, model([node("Relu", "x", "y")], outputs=[port("y", None), port("x")])))
    assert [o.shape for o in loaded.outputs] == [(2, 4), (2, 4)]


def test_a_small_file_may_not_ask_for_all_memory(tmp_path: Path) -> None:
    size = numpy_helper.from_array(np.array([1 << 24, 1 << 24]), "size")
    nodes = [node("ConstantOfShape", "size", "z"), node("ReduceSum", "z", "s", keepdims=0), node("Add", "x s", "y")]
    refuse(tmp_path, model(nodes, constants=[size]), r"'z'.*larger than this machine's memory")
    dynamic = model([node("Relu", "x", "y")], [port("x", ["n", 4096])], [port("y", ["n", 4096])])
    with pytest.raises(ModelError, match="larger than this machine's memory"):
        load(saved(tmp_path, dynamic), 1 << 40)


def refuse(folder: Path, proto: onnx.ModelProto | bytes, text: str) -> None:
    path = saved(folder, proto)
    before = sorted(folder.iterdir())
    with pytest.raises(ModelError, match=text) as raised:
        load(path)
    assert str(path) in str(raised.value)
    assert sorted(folder.iterdir()) == before


GOOD = adding(ONES).SerializeToString()


@pytest.mark.parametrize("content", [
    pytest.param(b"", id="empty"), pytest.param(b"\0" * 100, id="zeros"), pytest.param(b"hello, world", id="text"),
    pytest.param(np.random.default_rng(0).bytes(4096), id="random"),
    *(pytest.param(GOOD[:n], id=f"first {n}") for n in range(1, len(GOOD), 7)),
])  # fmt: skip
def test_what_is_no_onnx(tmp_path: Path, content: bytes) -> None:
    refuse(tmp_path, content, "not an ONNX|raw_data|topologically|Field|opset")


def test_any_byte_changed_is_a_model_or_a_clear_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    taken = 0
    for at in range(len(GOOD)):
        changed = bytearray(GOOD)
        changed[at] ^= int(rng.integers(1, 256))
        try:
            load(saved(tmp_path, bytes(changed)))
            taken += 1
        except ModelError:
            pass
    assert 0 < taken < len(GOOD)


def test_a_folder_a_missing_file_and_a_pipe_are_no_models(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, text in (
        (tmp_path, "not a file"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "pipe", "not a file"),
    ):
        with pytest.raises(ModelError, match=text):
            load(path)


@pytest.mark.parametrize(("tensor", "text"), [
    (external([2, 4], location="../secret.bin"), "outside"),
    (external([2, 4], location="sub/../data.bin"), "outside"),
    (external([2, 4], location="/etc/passwd"), "outside"),
    (external([2, 4], location="link.bin"), "outside"),
    (external([2, 4], location="sub"), "not a regular file"),
    (external([2, 4], location="loop.bin"), "symbolic links"),
    (external([2, 4], location="a\0b"), "names no file"),
    (external([2, 4]), "names no file"),
    (external([2, 4], location="none.bin"), "No such file"),
    (external([2, 4], location="data.bin", offset=48), "takes 32 bytes, its external data has 16"),
    (external([2, 4], location="data.bin", offset=40, length=32), "which has 64 bytes"),
    (external([2, 4], location="data.bin", offset=-32, length=32), "which has 64 bytes"),
    (external([2, 4], location="data.bin", offset=10**30, length=32), "which has 64 bytes"),
    (external([2, 4], location="data.bin", offset="x"), "no number"),
    (external([2, 4], location="data.bin", length=4), "takes 32 bytes, its external data has 4"),
    (external([1 << 62, 8], location="data.bin", length=32), "its external data has 32"),
    (external([-2, -4], location="data.bin", length=32), "negative dimension"),
    (external([2, 4], kind=99, location="data.bin", length=32), "type 99"),
    (external([2, 4], kind=TensorProto.STRING, location="data.bin"), "string"),
])  # fmt: skip
@pytest.mark.parametrize("place", ["initializer", "constant", "branch", "function"])
def test_external_data(tmp_path: Path, tensor: TensorProto, text: str, place: str) -> None:
    (tmp_path / "secret.bin").write_bytes(b"s" * 64)
    folder = tmp_path / "models"
    (folder / "sub").mkdir(parents=True)
    (folder / "data.bin").write_bytes(b"\1" * 64)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "loop.bin").symlink_to(folder / "loop.bin")
    constant = helper.make_node("Constant", [], ["w"], name="the Constant", value=tensor)
    proto = adding(tensor)
    if place == "constant":
        proto = model([constant, node("Add", "x w", "y")], constants=[])
    elif place == "branch":
        inside = helper.make_graph([constant], "inside", [], [port("w")])
        branch = node("If", "c", "y", then_branch=inside, else_branch=inside)
        proto = model([branch], [port("c", (), TensorProto.BOOL)], constants=[])
    elif place == "function":
        proto = model([helper.make_node("Mine", [], ["y"], name="call", domain="my")], constants=[])
        proto.opset_import.append(helper.make_opsetid("my", 1))
        body = [constant, node("Relu", "w", "y")]
        proto.functions.append(helper.make_function("my", "Mine", [], ["y"], body, [helper.make_opsetid("", 17)]))
    refuse(folder, proto, text)


def inline(dims: list[int], content: bytes, kind: int = F) -> TensorProto:
    return TensorProto(name="w", data_type=kind, dims=dims, raw_data=content)


def lookup(table: TensorProto) -> onnx.ModelProto:
    return model([node("Gather", "w i", "y")], [port("i", ["n", 3], I64)], [port("y", ["n", 3, 32])], [table])


@pytest.mark.parametrize(("proto", "text"), [
    (adding(inline([2, 4], b"abcd")), "'?w"),
    (adding(inline([2, 4], b"abcd" * 8, 77)), "'w' is of type 77"),
    (lookup(inline([1 << 20, 32], b"abcd" * 8)), "'w': its data does not fill"),
    (lookup(inline([1 << 62, 32], b"abcd" * 8)), "'w': its data does not fill"),
    (lookup(inline([-1, 32], b"abcd" * 8)), "'w' has a negative dimension"),
    (model([node("Add", "x b", "a"), node("Add", "a w", "b")], outputs=[port("b")]), "topologically"),
    (model([node("Add", "x gone", "y")]), "'gone'.*the Add"),
    (model([node("Relu", "x", "y"), node("Abs", "x", "y")]), "'y'.*multiple times"),
    (model([node("Add", "x w", "y")], constants=[ONES, ONES]), "w initializer name is not unique"),
    (model([node("Add", "x x", "y")], [port("x"), port("x")]), "'x'.*multiple times"),
    (model([node("Relu", "x", "y")], outputs=[port("z")]), "'z'"),
    (model([node("Relu", "x", "y")], outputs=[port("y"), port("w")]), "'w' is a constant"),
    (model([node("Relu", "w", "y")]), "'y' is a constant"),
    (model([node("Relu", "x", "y")], [port("x", (-5, 4))]), "'x': dimension 0 is -5"),
    (model([node("Relu", "x", "y")], [port("x", (2, -4))]), "'x': dimension 1 is -4"),
    (model([node("Relu", "x", "y")], [port("x", (2, 0))]), "'x': dimension 1 is 0"),
    (model([node("Relu", "x", "y")], [port("x", ("n", "NaN"))], [port("y", None)]), "dimension 1 is symbolic"),
    (model([node("Relu", "x", "y")], [port("x", None)]), "'x' is not a tensor with a shape"),
    (model([node("Relu", "x", "y")], [port("x", (1 << 40, 1 << 40))], [port("y", None)]), "memory"),
    (model([node("Conv", "x w", "y")], [port("x", (1, 1, 2, 2))], [port("y", None)],
           [numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w")]), "the Conv.*empty"),
    (model([node("Add", "x w", "y")], [port("x", (3, 5))], [port("y", None)]), "the Add"),
    (model([node("Sqrt", "x", "y")], [port("x", kind=TensorProto.DOUBLE)], [port("y", kind=TensorProto.DOUBLE)]),
     "float64; expected float32"),
    (model([node("Cast", "x", "s", to=TensorProto.STRING), node("Cast", "s", "y", to=F)]), "the Cast.*string"),
    (model([node("NonZero", "x", "y")], outputs=[port("y", (2, "k"), I64)]), "NonZero"),
    (model([node("RandomNormalLike", "x", "y")]), "the RandomNormalLike.*at random"),
    (model([node("BatchNormalization", "x k k k k", "y", training_mode=1)], [port("x", (2, 1, 3, 3))],
           [port("y", (2, 1, 3, 3))], [numpy_helper.from_array(np.ones(1, np.float32), "k")]), "training mode"),
    (model([node("Dropout", "x r t", "y")], constants=[
        numpy_helper.from_array(np.float32(0.5), "r"), numpy_helper.from_array(np.array(True), "t")]), "training mode"),
    (model([node("Foo", "x", "y", domain="my.own")]), "the Foo.*my.own.Foo"),
    (model([node("Frobnicate", "x", "y")]), "Frobnicate"),
    (model([node("Relu", "x", "y")], opset=0), "Relu"),
    (model([node("Relu", "x", "y")], opset=99), "[Oo]pset 99"),
])  # fmt: skip
def test_bad_graphs(tmp_path: Path, proto: onnx.ModelProto, text: str) -> None:
    refuse(tmp_path, proto, text)


def test_a_graph_without_output(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")])
    del proto.graph.output[:]
    refuse(tmp_path, proto, "no output")


@pytest.mark.parametrize("stated", ["0", "-3", "many", "²", "9" * 30])
def test_a_stated_batch_that_is_no_number(tmp_path: Path, stated: str) -> None:
    proto = model([node("Relu", "x", "y")], [port("x", ("n", 4))], [port("y", ("n", 4))])
    helper.set_model_props(proto, {"veltair.max_batch": stated})
    refuse(tmp_path, proto, "veltair.max_batch")
    assert load(saved(tmp_path, proto), 3).max_batch == 3


def test_an_asked_batch_below_one(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [port("x", ("n", 4))], [port("y", ("n", 4))])
    with pytest.raises(ModelError, match="at least 1, got 0"):
        load(saved(tmp_path, proto), 0)


@pytest.mark.parametrize("apart", [True, False])
def test_large_constants_stay_in_files_and_are_right(tmp_path: Path, apart: bool) -> None:
    weight = np.random.default_rng(5).standard_normal((600, 700)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["y"])]
    constants = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(weight[0], "b")]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, d]) for n, d in (("x", 600), ("y", 700))]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=apart, location="m.weights")
    loaded = load(tmp_path / "m.onnx")
    (found,) = (a for a in loaded.initializers.values() if a.shape == weight.shape)
    assert np.array_equal(found, weight)
    owner: Any = found
    while isinstance(owner, np.ndarray):
        owner = owner.base
    assert isinstance(owner.obj if isinstance(owner, memoryview) else owner, mmap.mmap)
