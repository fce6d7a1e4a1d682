"""ONNX files that are refused with the path and the reason: broken content, external data, graphs, batches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_protos import I64, ONES, F, adding, external, model, node, port, refuse, saved

from veltair.compiler.onnx.onnx_model import load_model
from veltair.errors import ModelError

GOOD = adding(ONES).SerializeToString()
CONTENTS = {
    "empty": b"",
    "zeros": b"\0" * 100,
    "text": b"hello, world",
    "random": np.random.default_rng(0).bytes(4096),
    **{f"first {n}": GOOD[:n] for n in range(1, len(GOOD), 7)},
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_what_is_no_onnx(tmp_path: Path, content: bytes) -> None:
    refuse(tmp_path, content, "not an ONNX|raw_data|topological|Field|opset")


def test_any_byte_changed_is_a_model_or_a_clear_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    taken = 0
    for at in range(len(GOOD)):
        changed = bytearray(GOOD)
        changed[at] ^= int(rng.integers(1, 256))
        try:
            load_model(saved(tmp_path, bytes(changed)))
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
            load_model(path)


BAD_EXTERNAL_DATA = [
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
]


@pytest.mark.parametrize(("tensor", "text"), BAD_EXTERNAL_DATA)
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


BF16 = TensorProto.BFLOAT16
IMAGE = (2, 1, 3, 3)
FILTER = numpy_helper.from_array(np.ones((1, 1, 3, 3), np.float32), "w")
ONE = numpy_helper.from_array(np.ones(1, np.float32), "k")
HALF = numpy_helper.from_array(np.float32(0.5), "r")
TRUE = numpy_helper.from_array(np.array(True), "t")
TRAINED_NORM = node("BatchNormalization", "x k k k k", "y", training_mode=1)
BAD_GRAPHS = [
    (adding(inline([2, 4], b"abcd")), "'?w"),
    (adding(inline([2, 4], b"abcd" * 8, 77)), "'w' is of type 77"),
    (lookup(inline([1 << 20, 32], b"abcd" * 8)), "'w': its data does not fill"),
    (lookup(inline([1 << 62, 32], b"abcd" * 8)), "'w': its data does not fill"),
    (lookup(inline([-1, 32], b"abcd" * 8)), "'w' has a negative dimension"),
    (model([node("Add", "x b", "a"), node("Add", "a w", "b")], outputs=[port("b")]), "Add. reads what depends on its"),
    (model([node("Add", "x gone", "y")]), "'gone'.*the Add"),
    (model([node("Relu", "x", "y"), node("Abs", "x", "y")]), "'y'.*multiple times"),
    (model([node("Add", "x w", "y")], constants=[ONES, ONES]), "w initializer name is not unique"),
    (model([node("Add", "x x", "y")], [port("x"), port("x")]), "'x'.*multiple times"),
    (model([node("Relu", "x", "y")], outputs=[port("z")]), "'z'"),
    (model([node("Relu", "x", "y")], [port("x", (2, -4))]), "dimension 1 is symbolic .x:1."),
    (model([node("Relu", "x", "y")], [port("x", (2, 0))]), "output 'y' has no elements"),
    (model([node("Relu", "x", "y")], [port("x", ("n", "NaN"))], [port("y", None)]), "dimension 1 is symbolic"),
    (model([node("Relu", "x", "y")], [port("x", None)]), "'x' is not a tensor with a shape"),
    (model([node("Relu", "x", "y")], [port("x", (1 << 40, 1 << 40))], [port("y", None)]), "memory"),
    (
        model([node("Conv", "x w", "y")], [port("x", (1, 1, 2, 2))], [port("y", None)], [FILTER]),
        "output 'y' has no elements",
    ),
    (model([node("Add", "x w", "y")], [port("x", (3, 5))], [port("y", None)]), "the Add"),
    (model([node("Cast", "x", "y", to=F)], [port("x", kind=BF16)]), "bfloat16; expected float32"),
    (
        model([node("Cast", "x", "y", to=BF16)], outputs=[port("y", kind=BF16)]),
        "output .y. is bfloat16; expected another",
    ),
    (model([node("Cast", "x", "s", to=TensorProto.STRING), node("Cast", "s", "y", to=F)]), "the Cast.*string"),
    (model([node("RandomNormalLike", "x", "y")]), "the RandomNormalLike.*at random"),
    (model([TRAINED_NORM], [port("x", IMAGE)], [port("y", IMAGE)], [ONE]), "training mode"),
    (model([node("Dropout", "x r t", "y")], constants=[HALF, TRUE]), "training mode"),
    (model([node("Foo", "x", "y", domain="my.own")]), "the Foo.*my.own.Foo"),
    (model([node("Frobnicate", "x", "y")]), "Frobnicate"),
    (model([node("Relu", "x", "y")], opset=0), "Relu"),
    (model([node("Relu", "x", "y")], opset=99), "[Oo]pset 99"),
]


@pytest.mark.parametrize(("proto", "text"), BAD_GRAPHS)
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
    assert load_model(saved(tmp_path, proto), 3).max_batch == 3


def test_an_asked_batch_below_one(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [port("x", ("n", 4))], [port("y", ("n", 4))])
    with pytest.raises(ModelError, match="at least 1, got 0"):
        load_model(saved(tmp_path, proto), 0)


def test_a_dimension_that_grows_otherwise_is_refused_without_the_fallback(tmp_path: Path) -> None:
    square = model([node("Transpose", "x", "t"), node("MatMul", "x t", "m")], [port("x", ["n", 4])], [port("m", None)])
    with pytest.raises(ModelError, match=r"'m' has shape .-1, -1., where -k is k times the batch"):
        load_model(saved(tmp_path, square), fallback=False)
    ragged = model([node("Concat", "x w", "y", axis=0)], [port("x", ["n", 4])], [port("y", None)])
    with pytest.raises(ModelError, match="'y': a dimension grows with the batch, but not in proportion"):
        load_model(saved(tmp_path, ragged), fallback=False)


def test_a_small_file_may_not_ask_for_all_memory(tmp_path: Path) -> None:
    size = numpy_helper.from_array(np.array([1 << 24, 1 << 24]), "size")
    nodes = [node("ConstantOfShape", "size", "z"), node("ReduceSum", "z", "s", keepdims=0), node("Add", "x s", "y")]
    refuse(tmp_path, model(nodes, constants=[size]), r"'z'.*larger than this machine's memory")
    dynamic = model([node("Relu", "x", "y")], [port("x", ["n", 4096])], [port("y", ["n", 4096])])
    with pytest.raises(ModelError, match="larger than this machine's memory"):
        load_model(saved(tmp_path, dynamic), 1 << 40)


@pytest.mark.parametrize("count", [(1 << 16) + 1, (1 << 18) + 1])
def test_too_many_nodes(tmp_path: Path, count: int) -> None:
    """Models with columns may have more, until these are taken out."""
    chain = [node("Neg", f"t{at}", f"t{at + 1}") for at in range(count)]
    proto = model(chain, [port("t0")], [port(f"t{count}")])
    refuse(tmp_path, proto.SerializeToString(), f"{count} nodes, .*at most 65536")
    proto.opset_import.append(helper.make_opsetid("ai.onnx.contrib", 1))
    most = 65536 if count < 1 << 18 else 262144
    refuse(tmp_path, proto.SerializeToString(), f"{count} nodes, .*at most {most}")
