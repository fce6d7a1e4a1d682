"""Ids that are inputs of an embedding model: the daemon refuses those without a row, and goes on."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from running_daemon import Daemon, configuration, running, tensor
from running_engine import WAIT_S
from tritonclient.utils import InferenceServerException

import veltair

pytestmark = pytest.mark.slow

ROWS, LOOKUPS, DIM = 97, 3, 8
TABLE = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
Ids = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an artifact: two bags of rows of a table, side by side."""
    folder = tmp_path_factory.mktemp("bags")
    nodes = [helper.make_node("Concat", ["a.sum", "b.sum"], ["y"], axis=1)]
    for name in "ab":
        rows = [helper.make_node("Gather", ["table", name], [f"{name}.rows"])]
        nodes = [*rows, helper.make_node("ReduceSum", [f"{name}.rows", "axis"], [f"{name}.sum"], keepdims=0), *nodes]
    ids = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", LOOKUPS]) for name in "ab"]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2 * DIM])
    constants = [numpy_helper.from_array(TABLE, "table"), numpy_helper.from_array(np.array([1]), "axis")]
    graph = helper.make_graph(nodes, "bags", ids, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "bags.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "xdg"))
        veltair.compile(folder / "bags.onnx", folder / "bags", precision="fp32", trials=0, max_batch=8)
    return folder


@pytest.fixture(scope="module")
def daemon(bags: Path, fronts: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("daemon"), configuration(bags, "bags", fronts=fronts)) as started:
        yield started


def good(rows: int) -> Ids:
    chance = np.random.default_rng(rows)
    return {name: chance.integers(0, ROWS, (rows, LOOKUPS)) for name in "ab"}


def expected(ids: Ids) -> np.ndarray[Any, Any]:
    return np.concatenate([TABLE[ids[name]].sum(1) for name in "ab"], axis=1)


def ask(client: Any, module: Any, ids: Ids) -> np.ndarray[Any, Any]:
    kinds = {np.dtype("int64"): "INT64", np.dtype("int32"): "INT32"}
    found: np.ndarray[Any, Any] = client.infer(
        "bags", [tensor(module, name, values, kinds[values.dtype]) for name, values in ids.items()]
    ).as_numpy("y")
    return found


def changed(rows: int, value: int) -> Ids:
    ids = good(rows)
    ids["b"][rows - 1, LOOKUPS - 1] = value
    return ids


def with_bag(rows: int, bag: np.ndarray[Any, Any]) -> Ids:
    return {**good(rows), "b": bag}


OUT_OF_RANGE = {
    f"id {value}": (changed(5, value), rf"'b' has {value} at \[4, 2\]; ids go from 0 to {ROWS - 1}")
    for value in (-1, ROWS, 1 << 31, 1 << 32, 1 << 40, -(1 << 63), (1 << 63) - 1)
}
WRONG_SHAPE = rf"shape \[1…8, {LOOKUPS}\], got"
HOSTILE: dict[str, tuple[Ids, str]] = OUT_OF_RANGE | {
    "a bag of ten million": (with_bag(1, np.zeros((1, 10_000_000), np.int32)), "'b' is INT64, got 'INT32'"),
    "a long bag": (with_bag(1, np.zeros((1, 1_000_000), np.int64)), rf"{WRONG_SHAPE} \[1, 1000000\]"),
    "a short bag": (with_bag(2, np.zeros((2, 2), np.int64)), rf"{WRONG_SHAPE} \[2, 2\]"),
    "bags of another batch": (with_bag(2, np.zeros((3, 3), np.int64)), "'b' has batch 3, 'a' has 2"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_query_and_then_a_good_one(clients: list[tuple[Any, Any]], case: str) -> None:
    ids, says = HOSTILE[case]
    for client, module in clients:
        with pytest.raises(InferenceServerException, match=says):
            ask(client, module, ids)
        np.testing.assert_allclose(ask(client, module, good(3)), expected(good(3)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, 1.5, "3", None, True])
def test_ids_in_json_that_are_no_ids(daemon: Daemon, value: Any) -> None:
    data = {name: ids.tolist() for name, ids in good(1).items()}
    data["b"][0][0] = value
    inputs = [{"name": name, "datatype": "INT64", "shape": [1, LOOKUPS], "data": rows} for name, rows in data.items()]
    request = urllib.request.Request(
        f"http://{daemon.http}/v2/models/bags/infer", json.dumps({"inputs": inputs}).encode()
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=WAIT_S)
    with caught.value as answer:
        assert answer.code == 400
        assert "'b'" in json.load(answer)["error"]
