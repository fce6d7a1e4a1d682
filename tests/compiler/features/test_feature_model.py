"""A feature description in front of an ONNX model: one artifact from raw features to the score."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from veltair.cli import main
from veltair.compiler.build import compile_model
from veltair.compiler.features.description_file import load_description as load_features
from veltair.compiler.features.feature_model import join_features
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.compiler.features.random_features import draw_features
from veltair.compiler.onnx.onnx_model import load_model as load_onnx
from veltair.compiler.pipeline import lower
from veltair.compiler.timing.measure import Meter
from veltair.compiler.timing.measuring_messages import TensorSequence
from veltair.errors import ModelError
from veltair.machine.isa import ISAS, cpu_features
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact
from veltair.profiles.artifact.input_layout import InputLayout
from veltair.profiles.records.tuning_records import RecordStore
from veltair.profiles.runtime.executor import Executor, aligned_zeros

FEATURES = """
features = [
    { name = "age", kind = "float" },
    { name = "user", kind = "int" },
    { name = "history", kind = "tokens", separator = ";", truncate = 5, max_bytes = 64 },
    { name = "idle", kind = "int" },
]
tables = [{ name = "ages", rows = 4, dim = 8, seed = 1 }, { name = "ids", rows = 100, dim = 8, seed = 2 }]
columns = [
    { feature = "age", boundaries = [-1, 0, 1], table = "ages" },
    { feature = "user", hash = 100, table = "ids" },
    { feature = "history", hash = 100, table = "ids" },
]
inputs = [{ name = "wide", columns = ["age"] }, { name = "deep", columns = ["user", "history"] }]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two inputs that columns give and one that they do not."""
    path = tmp_path_factory.mktemp("features")
    chance = np.random.default_rng(0)
    weight = chance.standard_normal((27, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Concat", ["wide", "plain", "deep"], ["all"], axis=1),
        helper.make_node("MatMul", ["all", "weight"], ["score"]),
    ]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", width])
        for name, width in (("wide", 8), ("plain", 3), ("deep", 16))
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["B", 2])
    graph = helper.make_graph(nodes, "g", inputs, [output], [numpy_helper.from_array(weight, "weight")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path / "m.onnx")
    (path / "m.toml").write_text(FEATURES)
    return path


@pytest.fixture(scope="module")
def compiled(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    store = RecordStore(ISAS["avx512"] & cpu_features(), user=tmp_path_factory.mktemp("records"))
    return compile_model(
        folder / "m.onnx",
        folder / "out",
        features=folder / "m.toml",
        trials=0,
        precision="fp32",
        max_batch=4,
        store=store,
    )


def test_inputs_are_the_raw_features_and_what_is_left(compiled: Artifact) -> None:
    inputs = {port.name: (port.dtype, port.shape, port.max_bytes, port.separator) for port in compiled.manifest.inputs}
    assert inputs == {
        "age": ("float32", (-1, 1), 0, ""),
        "user": ("int64", (-1, 1), 0, ""),
        "history": ("string", (-1, 1), 64, ";"),
        "plain": ("float32", (-1, 3), 0, ""),
    }
    assert [room.name for room in compiled.manifest.input_tensors] == [
        "plain",
        *(b.name for b in compiled.manifest.packed_buffers),
    ]


@pytest.mark.parametrize("batch", [1, 3, 4])
def test_from_raw_features_to_the_score(compiled: Artifact, folder: Path, batch: int) -> None:
    description, chance = load_features(folder / "m.toml"), np.random.default_rng(batch)
    raw: dict[str, Any] = {
        **draw_features(description, batch, chance),
        "plain": chance.standard_normal((batch, 3)).astype(np.float32),
    }
    manifest = compiled.manifest
    arrays = [aligned_zeros(port.at(batch), port.dtype) for port in manifest.input_tensors]
    InputLayout.of(manifest).fill(arrays, raw, batch)
    out = aligned_zeros((batch, 2), "float32")
    Executor(compiled).bind(batch, arrays, [out]).block(0, [0] * len(manifest.layers))()
    given = reference_inputs(description, raw)
    weight = numpy_helper.to_array(onnx.load(folder / "m.onnx").graph.initializer[0])
    expected = np.concatenate([given["wide"], raw["plain"], given["deep"]], 1) @ weight
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("bf16", "uint16")])
def test_columns_write_where_they_are_read(folder: Path, tmp_path: Path, precision: str, dtype: str) -> None:
    """Into what is joined of them and others; rounded where products alone read them."""
    model = load_onnx(folder / "m.onnx", 32)
    layers = lower(model, precision, join_features(model, load_features(folder / "m.toml"))).layers
    assert [layer.op for layer in layers] == ["columns", "columns", layers[2].op]
    assert [t.name for t in layers[1].inputs[-2:]] == ["wide", "plain"] and layers[1].outputs[0].shape == (-1, 27)
    assert layers[1].outputs[0].dtype == dtype and layers[0].outputs[0].dtype == "float32"

    nodes = [
        helper.make_node("MatMul", ["wide", "weight"], ["score"]),
        helper.make_node("MatMul", ["deep", "twice"], ["two"]),
        helper.make_node("Relu", ["deep"], ["also"]),
    ]
    graph = onnx.load(folder / "m.onnx").graph
    weights = [numpy_helper.from_array(np.ones((k, 2), np.float32), n) for n, k in (("weight", 8), ("twice", 16))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["B", w]) for n, w in (("two", 2), ("also", 16))]
    graph = helper.make_graph(
        nodes, "g", [i for i in graph.input if i.name != "plain"], [*graph.output, *outputs], weights
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = load_onnx(path, 32)
    wide, deep, *_ = lower(model, precision, join_features(model, load_features(folder / "m.toml"))).layers
    assert (wide.outputs[0].dtype, deep.outputs[0].dtype) == (dtype, "float32")


def test_verify_takes_the_description(compiled: Artifact, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["verify", str(compiled.path), str(folder / "m.onnx"), "--json"]
    cores = os.sched_getaffinity(0)
    assert main([*command, "--features", str(folder / "m.toml")]) == 0
    assert os.sched_getaffinity(0) == cores  # whoever calls it keeps the cores that it had
    assert json.loads(capsys.readouterr().out)["max_layer_err"] < 1e-5
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "takes wide, plain, deep; the artifact" in told and "give the --features" in told


def test_tables_stand_once_in_the_weights(compiled: Artifact) -> None:
    """Both columns' layers read one store."""
    tables = 2 * (4 * 8 + 8 + 100 * 8 + 8)
    assert load_artifact(compiled.path).weights.stat().st_size < 4 * 4 * tables


def test_columns_are_measured_with_features_and_never_twice_with_the_same(folder: Path) -> None:
    model = load_onnx(folder / "m.onnx", 4)
    spec = join_features(model, load_features(folder / "m.toml")).layers[1]
    with Meter(usable_machine().cores) as meter:
        operands = meter.inputs(spec, 4, {})
        contents = []
        for operand in operands:
            assert isinstance(operand, TensorSequence) and operand.count > 1
            contents.append(np.fromfile(operand.path, operand.dtype).reshape(operand.count, -1))
        assert all(len({row.tobytes() for row in rows}) == len(rows) and rows.any() for rows in contents)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"deep", columns', '"depth", columns', "input 'depth': the model .* takes wide, plain, deep"),
        ("rows = 4, dim = 8", "rows = 4, dim = 4", r"input 'wide': its columns give float32 \[-1, 4\], the model"),
        ('"user"', '"plain"', "feature 'plain': the model .* has an input of that name"),
        ("max_bytes = 64", "max_bytes = 16000000", "max_bytes: room for 2448000000 bytes of text in a batch of 153"),
    ],
)
def test_descriptions_that_do_not_fit_the_model_are_refused(folder: Path, old: str, new: str, says: str) -> None:
    (folder / "wrong.toml").write_text(FEATURES.replace(old, new))
    with pytest.raises(ModelError, match=says):
        join_features(load_onnx(folder / "m.onnx", 153), load_features(folder / "wrong.toml"))
