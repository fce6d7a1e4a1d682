"""Tables in fewer bytes, asked for or as a file has them, against numpy and ONNX Runtime."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_nets import Net, normal, run

from veltair.cli import main
from veltair.compiler.build import compile_model
from veltair.compiler.embedding.row_storage import STORAGES, decode_rows
from veltair.compiler.embedding.table_storage import LAYER_TOLERANCE, TableStorage
from veltair.compiler.graph.parameters.recommendation import EmbeddingBagParameters
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.errors import ModelError
from veltair.machine.isa import ISAS, cpu_features
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.manifest import Storage
from veltair.profiles.records.tuning_records import RecordStore

Array = NDArray[Any]
ROWS = 40
chance = np.random.default_rng(11)
QUARTERS = {
    "int8": chance.integers(-128, 128, (ROWS, 6)).astype(np.int8),
    "uint8": chance.integers(0, 256, (ROWS, 6)).astype(np.uint8),
}
SCALES = chance.uniform(0.01, 0.1, ROWS).astype(np.float32)


def bags(net: Net, **ids: list[Any]) -> Net:
    """Ids as inputs of a little net."""
    net.inputs += [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in ids.items()]
    return net


def half_behind(net: Net) -> str:
    rows = net("Cast", net("Gather", normal(ROWS, 6).astype(np.float16), "ids"), to=1)
    return net("ReduceSum", rows, np.array([1]), keepdims=0)


def half_before(net: Net) -> str:
    table = net("Cast", np.resize(normal(ROWS, 6), (200_000, 6)).astype(np.float16), to=1)
    return net("ReduceMean", net("Gather", table, "ids"), axes=[1], keepdims=0)


def one_scale(net: Net) -> str:
    rows = net("Gather", QUARTERS["int8"], "ids")
    rows = net("DequantizeLinear", rows, np.float32(0.03), np.array(-7, np.int8))
    return net("ReduceSum", rows, np.array([1]), keepdims=0)


def one_scale_without_zero(net: Net) -> str:
    return net("DequantizeLinear", net("Gather", QUARTERS["uint8"], "ids"), np.float32(0.03))


def scales_of_rows(net: Net) -> str:
    zeros = chance.integers(0, 256, ROWS).astype(np.uint8)
    picked = [net("Gather", numbers, "id") for numbers in (QUARTERS["uint8"], SCALES, zeros)]
    return net("DequantizeLinear", *picked, axis=0)


def scales_before(net: Net) -> str:
    table = net("DequantizeLinear", QUARTERS["int8"], SCALES, np.zeros(ROWS, np.int8), axis=0)
    return net("ReduceSum", net("Gather", table, "ids"), np.array([1]), keepdims=0)


@pytest.mark.parametrize(
    ("build", "storage"),
    [
        (half_behind, "fp16"),
        (half_before, "fp16"),
        (one_scale, "int8"),
        (one_scale_without_zero, "int8"),
        (scales_of_rows, "int8"),
        (scales_before, "int8"),
    ],
)
def test_tables_that_a_file_keeps_narrow_stay_so(build: Callable[[Net], str], storage: str, tmp_path: Path) -> None:
    net = bags(Net(), **({"id": ["n"]} if build is scales_of_rows else {"ids": ["n", 5]}))
    path = net.save(tmp_path / "m.onnx", build(net))
    (spec,) = lower(load_model(path, 4), "fp32").layers
    assert (spec.op, spec.parameters_as(EmbeddingBagParameters).storage) == ("embedding_bag", storage)
    assert spec.weights["table0"].dtype == {"fp16": np.float16, "int8": np.uint8}[storage]
    for batch in (1, 3):
        shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim[1:]] for i in net.inputs}
        feeds = {name: chance.integers(0, ROWS, (batch, *shape)) for name, shape in shapes.items()}
        (expected,) = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, feeds)
        (found,), _ = run(path, feeds, "fp32", batch)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_stored_tables_behind_strings_are_columns(tmp_path: Path) -> None:
    keys = {"keys_strings": ["a", "b"], "values_int64s": [2, 0], "default_int64": 1}
    nodes = [
        helper.make_node("LabelEncoder", ["s"], ["id"], domain="ai.onnx.ml", **keys),
        helper.make_node("Gather", ["table", "id"], ["half"]),
        helper.make_node("Cast", ["half"], ["y"], to=TensorProto.FLOAT),
    ]
    table = onnx.numpy_helper.from_array(normal(3, 4).astype(np.float16), "table")
    given = helper.make_tensor_value_info("s", TensorProto.STRING, ["n"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", [given], [out], [table])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    columns = load_model(tmp_path / "m.onnx", 4).columns
    assert columns is not None
    (rows,) = columns.tables.values()
    np.testing.assert_array_equal(rows, onnx.numpy_helper.to_array(table)[[2, 0, 1]])


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_of_bags_are_kept_as_asked(storage: Storage, tmp_path: Path) -> None:
    """Exactly those of numpy's, and near those of the file."""
    net, table = bags(Net(), ids=["n", 7]), normal(ROWS, 19)
    path = net.save(tmp_path / "m.onnx", net("ReduceSum", net("Gather", table, "ids"), np.array([1]), keepdims=0))
    kept, ids = TableStorage(storage), chance.integers(0, ROWS, (3, 7))
    (found,), _ = run(path, {"ids": ids}, "fp32", 3, tables=kept)
    held = table.astype(np.float16).astype(np.float32) if storage == "fp16" else table
    if storage == "int8":
        low = table.min(1, keepdims=True)
        step = (table.max(1, keepdims=True) - low) / np.float32(255)
        held = np.rint((table - low) / step) * step + low
    np.testing.assert_allclose(found, held[ids].sum(1), rtol=1e-5, atol=1e-6)
    wanted = table[ids].sum(1)
    assert np.abs(found - wanted).max() <= max(LAYER_TOLERANCE[storage], 1e-6) * np.abs(wanted).max()
    assert kept.error == pytest.approx(np.abs(held - table).max() / np.abs(table).max(), rel=1e-3)


@pytest.mark.parametrize(("storage", "worst"), [("fp16", 7e4), ("fp16", np.nan), ("int8", np.inf)])
def test_numbers_that_rows_cannot_hold_are_refused(storage: Storage, worst: float) -> None:
    table = normal(ROWS, 8)
    table[31, 5] = worst
    with pytest.raises(ModelError, match=f"table 'items': row 31 holds .*; rows of {storage} hold numbers up to"):
        TableStorage(storage).encode("items", table)


def test_large_tables_go_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veltair.compiler.embedding.table_storage.MAPPED_BYTES", 1000)
    monkeypatch.setattr("veltair.compiler.embedding.table_storage.NUMBERS_AT_ONCE", 100)  # numbers at once
    table, kept = normal(300, 9), TableStorage("int8", tmp_path)
    rows = kept.encode("a", table)
    assert isinstance(rows, np.memmap) and kept.encode("a", table) is rows and kept.encode("b", table) is not rows
    np.testing.assert_array_equal(decode_rows(rows), decode_rows(TableStorage("int8").encode("a", table)))


def test_an_artifact_says_how_its_tables_are_kept_and_what_that_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    net, table = bags(Net(), ids=["n", 7]), normal(3000, 64)
    rows = net("ReduceSum", net("Gather", table, "ids"), np.array([1]), keepdims=0)
    path, out = net.save(tmp_path / "m.onnx", net("Gemm", rows, normal(64, 4))), tmp_path / "out"
    store = RecordStore(ISAS["avx512"] & cpu_features(), user=tmp_path / "records")
    compile_model(path, out, trials=0, precision="fp32", max_batch=2, store=store, tables="int8")
    manifest = load_artifact(out).manifest
    assert manifest.tables == "int8" and 1e-4 < manifest.tables_error < 1 / 255
    assert manifest.tolerance > 1e-3 and (out / "weights.bin").stat().st_size < 3000 * (64 + 8) + 8192
    assert main(["verify", str(out), str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert 1e-4 < report["max_table_err"] < 1e-2 and report["max_layer_err"] < 1e-5
    assert main(["inspect", str(out)]) == 0
    assert "tables int8 (off by 0.00" in capsys.readouterr().out
