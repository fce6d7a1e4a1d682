"""From raw features to the score: a compiled model in the daemon, against hashes of pyfarmhash and sums of numpy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import farmhash
import numpy as np
import onnx
import pyarrow as pa
import pytest
from onnx import TensorProto, helper, numpy_helper
from running_daemon import Daemon, configuration, running, tensor
from tritonclient.utils import InferenceServerException

import veltair

pytestmark = pytest.mark.slow

ROWS, DIM = 97, 8
COLUMN = """
[[tables]]
name = "{feature}s"
rows = {rows}
dim = {dim}
file = "{feature}.npy"
[[columns]]
feature = "{feature}"
{step}
table = "{feature}s"
"""
STEPS = (
    ("age", 4, "boundaries = [18, 35, 65]"),
    ("user", ROWS, f"hash = {ROWS}"),
    ("history", ROWS, f'hash = {ROWS}\ncombiner = "mean"'),
)
RAW_FEATURES = """
[[features]]
name = "age"
kind = "float"
[[features]]
name = "user"
kind = "int"
[[features]]
name = "history"
kind = "tokens"
separator = ";"
truncate = 3
max_bytes = 64
"""
INPUTS = """
[[inputs]]
name = "x"
columns = ["age", "user", "history"]
"""
COLUMNS = [COLUMN.format(feature=feature, rows=rows, dim=DIM, step=step) for feature, rows, step in STEPS]
FEATURES = "\n".join([RAW_FEATURES, *COLUMNS, INPUTS])
TABLES = {
    name: np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)
    for seed, (name, rows) in enumerate({"age": 4, "user": ROWS, "history": ROWS}.items())
}
WEIGHT = np.random.default_rng(9).standard_normal((3 * DIM, 1)).astype(np.float32) / 4


def score(ages: list[float], users: list[int], histories: list[bytes]) -> np.ndarray[Any, Any]:
    rows = []
    for age, user, history in zip(ages, users, histories, strict=True):
        bucket = 3 if np.isnan(age) else int(np.digitize(np.float32(age), [18, 35, 65]))
        known = np.zeros(DIM) if user == -1 else TABLES["user"][farmhash.fingerprint64(str(user)) % ROWS]
        tokens = [token for token in history.split(b";") if token][:3]
        items = [TABLES["history"][farmhash.fingerprint64(token) % ROWS] for token in tokens]
        rows.append(np.concatenate([TABLES["age"][bucket], known, np.mean(items, 0) if items else np.zeros(DIM)]))
    return 1 / (1 + np.exp(-np.stack(rows) @ WEIGHT))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("ranker")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Sigmoid", ["z"], ["score"])],
        "ranker",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3 * DIM])],
        [helper.make_tensor_value_info("score", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "ranker.onnx"
    )
    (folder / "ranker.features.toml").write_text(FEATURES)
    for name, table in TABLES.items():
        np.save(folder / f"{name}.npy", table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(folder / "xdg"))
        description = folder / "ranker.features.toml"
        veltair.compile(
            folder / "ranker.onnx", folder / "ranker", features=description, precision="fp32", trials=0, max_batch=32
        )
    with running(folder, configuration(folder, "ranker")) as started:
        yield started


def inputs(module: Any, ages: list[float], users: list[int], histories: list[bytes]) -> list[Any]:
    texts = np.empty((len(histories), 1), object)
    texts[:, 0] = histories
    return [
        tensor(module, "age", np.array(ages, np.float32).reshape(-1, 1), "FP32"),
        tensor(module, "user", np.array(users, np.int64).reshape(-1, 1), "INT64"),
        tensor(module, "history", texts, "BYTES"),
    ]


ODD: tuple[list[float], list[int], list[bytes]] = (
    [17.9, 18, 1e30, float("nan"), -1, 65, 34, 0],
    [-1, 97, 1 << 31, 1 << 40, -(1 << 63), 0, 5, (1 << 63) - 1],
    [b"", b";;", b"a;b;c;d", b"\0;\xff\xfe", b"x" * 400, b";a", b"a;", "Größe".encode()],
)


def test_odd_values_have_their_documented_meaning(clients: list[tuple[Any, Any]]) -> None:
    for client, module in clients:
        found = client.infer("ranker", inputs(module, *ODD)).as_numpy("score")
        np.testing.assert_allclose(found, score(*ODD), rtol=1e-5, atol=1e-6)


def test_each_query_sees_its_own_strings_alone(clients: list[tuple[Any, Any]]) -> None:
    chance = np.random.default_rng(0)
    for rows in (32, 1, 7, 32, 2):
        tokens = [b";".join(b"i%d" % i for i in chance.integers(0, 99, chance.integers(0, 9))) for _ in range(rows)]
        given = chance.uniform(0, 90, rows).tolist(), chance.integers(0, 1 << 40, rows).tolist(), tokens
        for client, module in clients:
            found = client.infer("ranker", inputs(module, *given)).as_numpy("score")
            np.testing.assert_allclose(found, score(*given), rtol=1e-5, atol=1e-6)


def record_batch(module: Any, ages: list[float], users: list[int], histories: list[bytes]) -> list[Any]:
    """The same inputs as one tensor, in Arrow's stream format."""
    columns = {"age": pa.array(ages, pa.float32()), "user": pa.array(users, pa.int64()), "history": histories}
    batch, sink = pa.RecordBatch.from_pydict(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    content = np.frombuffer(sink.getvalue(), np.uint8)
    return [tensor(module, "veltair_arrow", content, "UINT8")]


def test_a_record_batch_is_what_its_columns_are(clients: list[tuple[Any, Any]]) -> None:
    for given in (ODD, ([20.0], [3], [b"a;b"]), ODD):  # also beside other requests with the same head
        for client, module in clients:
            found = client.infer("ranker", record_batch(module, *given)).as_numpy("score")
            np.testing.assert_allclose(found, score(*given), rtol=1e-5, atol=1e-6)
    for client, module in clients:
        for broken in (np.zeros(100, np.uint8), np.full(1 << 16, 255, np.uint8)):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("ranker", [tensor(module, "veltair_arrow", broken, "UINT8")])
            assert "input 'veltair_arrow': expected a message of Arrow's stream format" in str(caught.value)
            assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
        with pytest.raises(InferenceServerException, match="at most 64 a row, on average"):
            client.infer("ranker", record_batch(module, [20.0], [3], [b";" * 100_000]))


def test_ten_megabytes_are_refused_and_the_next_query_is_served(clients: list[tuple[Any, Any]]) -> None:
    good: tuple[list[float], list[int], list[bytes]] = [20.0], [3], [b"a"]
    for client, module in clients:
        with pytest.raises(InferenceServerException) as caught:
            client.infer("ranker", inputs(module, [20.0], [3], [b";" * 10_000_000]))
        assert "'history': 10000000 bytes of text in 1 rows; at most 64 a row, on average" in str(caught.value)
        found = client.infer("ranker", inputs(module, *good)).as_numpy("score")
        np.testing.assert_allclose(found, score(*good), rtol=1e-5, atol=1e-6)
