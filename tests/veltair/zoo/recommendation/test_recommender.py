"""The zoo's recommendation models against what was published of them, and run by ONNX Runtime."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import farmhash
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from veltair.compiler.features.description_file import load_description
from veltair.compiler.features.feature_description import FeatureDescription
from veltair.compiler.features.feature_reference import reference_inputs
from veltair.zoo.recommendation import dien
from veltair.zoo.recommendation.recommender import BuiltRecommender, RecommenderSpec, build_recommender
from veltair.zoo.registry import RECOMMENDERS, ZOO, write

ROWS = 1000
BATCH = 16
FEWEST = 20  # one-hot vectors have at least so many elements
# Numbers of a result that is no probability.
WIDTHS = {"ncf": 64, "graphsage": 40, "fusedmm": 128, "transe": 1}
DESCRIBED = ("deepfm", "recom_e", "recom_f", "elm_wdl")
TARGETS_MS = {
    "dlrm_rm1": 100,
    "dlrm_rm2": 400,
    "dlrm_rm3": 100,
    "wide_deep": 25,
    "ncf": 5,
    "dlrm_dcnv2": 60,
    "recom_e": 100,
    "recom_f": 100,
    "elm_wdl": 100,
    "graphsage": 100,
    **dict.fromkeys(("factorization_machine", "lightgcn", "fusedmm", "transe"), 10),
}


@pytest.fixture(scope="module")
def built() -> dict[str, BuiltRecommender]:
    return {name: build_recommender(RECOMMENDERS[name], 3, f"{name}.data", ROWS) for name in RECOMMENDERS}


def nodes(graph: onnx.GraphProto) -> Iterator[tuple[onnx.NodeProto, onnx.GraphProto]]:
    for node in graph.node:
        yield node, graph
        for attribute in node.attribute:
            if attribute.g.node:
                yield from nodes(attribute.g)


def own_parameters(found: BuiltRecommender) -> int:
    """All but the tables' and norms' running statistics."""
    held = {table.name for table in found.tables}
    graphs = {id(graph): graph for _, graph in nodes(found.proto.graph)}.values()
    floats = (t for graph in graphs for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT and t.dims)
    others = (*held, "running_mean", "running_var", "one")  # a Scan's body has its 1 as a constant
    return sum(math.prod(t.dims) for t in floats if not t.name.endswith(others))


def outer_multiply_adds(found: BuiltRecommender) -> int:
    """Of every Gemm and MatMul but those inside recurrences, for a batch of one."""
    graph = onnx.shape_inference.infer_shapes(found.proto, strict_mode=True, data_prop=True).graph
    dims = {t.name: list(t.dims) for t in graph.initializer}
    for value in (*graph.value_info, *graph.output, *graph.input):
        dims[value.name] = [d.dim_value or 1 for d in value.type.tensor_type.shape.dim]
    products = [node for node in graph.node if node.op_type in ("Gemm", "MatMul")]
    return sum(math.prod(dims[node.output[0]]) * dims[node.input[0]][-1] for node in products)


def dense(*widths: int) -> int:
    """Parameters of dense layers one behind the other."""
    return sum((i + 1) * o for i, o in itertools.pairwise(widths))


# By the configurations' widths alone: what the towers hold.
TOWERS = {
    "dlrm_rm1": dense(128, 64, 32) + dense(32 + 8 * 32, 256, 64, 1),
    "dlrm_rm2": dense(256, 128, 64) + dense(64 + 32 * 64, 128, 64, 1),
    "dlrm_rm3": dense(2560, 1024, 256, 32) + dense(32 + 10 * 32, 512, 256, 1),
    "wide_deep": dense(512 + 27 * 32, 1024, 512, 256, 1),
    "ncf": dense(128, 256, 256, 128, 64) + dense(128, 64),
    "deepfm": dense(429, 1024, 256, 32) + dense(49, 128, 64, 1) + 2 * (1024 + 256 + 32 + 128 + 64),
    # 36 normed values; query and its slopes; attention; a GRU with both of ONNX's biases; AUGRU with TensorFlow's one
    "dien": dense(36, 200, 80, 2, 1) + 72 + dense(8, 8) + 8 + dense(32, 80, 40, 1) + 2 * 3 * 8 * 9 + 3 * 8 * 17,
    "dlrm_dcnv2": dense(13, 512, 256, 128) + 3 * (2 * 3456 * 512 + 3456) + dense(3456, 1024, 1024, 512, 256, 1),
    "recom_e": dense(32, 32) + dense(8152, 1024, 1024, 128, 1),
    "recom_f": dense(32, 32) + dense(9704, 2048, 1024, 1024, 512, 1),
    "elm_wdl": dense(396, 1024, 512, 256, 64, 1) + dense(396, 1),
    "factorization_machine": dense(20 + 1128 + 24, 1),
    "graphsage": dense(2 * 128, 256) + dense(2 * 256, 40),
    **dict.fromkeys(("lightgcn", "fusedmm", "transe"), 0),
}
TOWERS["dien_strings"] = TOWERS["dien"]
TABLES = {  # rows x width, counted
    "dlrm_rm1": {(4_000_000, 32): 8},
    "dlrm_rm2": {(500_000, 64): 32},
    "dlrm_rm3": {(2_000_000, 32): 10},
    "wide_deep": {(1_000_000, 32): 27},
    "ncf": {(140_000, 64): 2, (28_000, 64): 2},
    "deepfm": {(10_000, 16): 26},
    "recom_e": {(101, 8): 880, (100, 8): 50, (10_000, 8): 65, (1 << 23, 32): 5},
    "recom_f": {(101, 8): 1000, (100, 8): 90, (10_000, 8): 107, (1 << 23, 32): 3},
    "elm_wdl": {(100_000, 16): 13},
    "graphsage": {(169_343, 128): 1},  # ogbn-arxiv
    "lightgcn": {(29_858, 64): 1, (40_981, 64): 1},  # Gowalla
    "fusedmm": {(916_428, 128): 1},  # web-Google, of Ember's Table 2
    "transe": {(93_773, 512): 1, (51, 512): 1},  # ogbl-biokg, likewise
}


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_published_sizes(built: dict[str, BuiltRecommender], name: str) -> None:
    whole, found = RECOMMENDERS[name].tables, built[name]
    if name in TABLES:
        assert collections.Counter((table.rows, table.dim) for table in whole) == TABLES[name]
    assert own_parameters(found) == TOWERS[name]
    assert ZOO[name].parameters == TOWERS[name] + sum(table.rows * table.dim for table in whole)
    properties = {p.key: p.value for p in found.proto.metadata_props}
    assert properties["veltair.qos_ms"] == str(TARGETS_MS.get(name, 25))


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_multiply_adds(built: dict[str, BuiltRecommender], name: str) -> None:
    recurrent = 2 * dien.STEPS * 3 * dien.HIDDEN * 2 * dien.HIDDEN if name.startswith("dien") else 0
    neighbours = 24 * 256 * 256 if name == "graphsage" else 0  # all but one: a Reshape hides how many there are
    assert ZOO[name].gflops == round(2 * (outer_multiply_adds(built[name]) + recurrent + neighbours) / 1e9, 6)


def test_sizes_that_papers_state() -> None:
    e, f = (4 * TOWERS[name] / (1 << 20) for name in ("recom_e", "recom_f"))
    assert (round(e, 1), round(f, 1)) == (36.4, 89.8)  # RECom, table 1: MB of the DNN
    widths = [sum(table.dim for table in RECOMMENDERS[name].tables) for name in ("recom_e", "recom_f")]
    assert widths == [8120, 9672]  # the same: sum of the embeddings' dimensions
    dcn = RECOMMENDERS["dlrm_dcnv2"].tables
    assert len(dcn) == 26 and sum(table.rows for table in dcn) == 204_184_588  # Criteo's, at most 40 million each
    assert lookups(RECOMMENDERS["dlrm_dcnv2"]) == 214
    assert lookups(RECOMMENDERS["dlrm_rm2"]) == 32 * 120


def lookups(recommender: RecommenderSpec) -> int:
    """Ids of a query of one."""
    ports = build_recommender(recommender, 0, "x", 3).proto.graph.input
    shapes = [port.type.tensor_type.shape.dim for port in ports if port.name.startswith("sparse")]
    return sum(math.prod(dim.dim_value for dim in list(shape)[1:]) for shape in shapes)


def draw(found: BuiltRecommender, session: ort.InferenceSession, seed: int) -> dict[str, NDArray[Any]]:
    """A query of BATCH: ids within the smallest table that they are looked up in, one at least."""
    rng = np.random.default_rng(seed)
    rows = {table.name: table.rows for table in found.tables}
    looked_up = {
        node.input[1]: rows[node.input[0]]
        for node in found.proto.graph.node
        if node.op_type == "Gather" and node.input[0] in rows
    }
    feeds: dict[str, NDArray[Any]] = {}
    for port in session.get_inputs():
        shape = [BATCH if isinstance(dim, str) else dim for dim in port.shape]
        if port.type == "tensor(int64)":
            feeds[port.name] = rng.integers(0, looked_up.get(port.name, min([*rows.values(), FEWEST])), shape)
        else:
            feeds[port.name] = rng.standard_normal(shape).astype(np.float32)
    if "history_item" in feeds:
        feeds["history_item"] += feeds["history_item"] == 0
    return feeds


@pytest.mark.parametrize("name", RECOMMENDERS)
def test_it_runs_at_any_batch_and_depends_on_every_input(tmp_path: Path, name: str) -> None:
    path = write(name, tmp_path / f"{name}.onnx", 3, rows=ROWS)[0]
    onnx.checker.check_model(str(path), full_check=True)
    session = run(path)
    found = build_recommender(RECOMMENDERS[name], 3, f"{path.name}.data", ROWS)
    feeds = draw(found, session, 0)
    (together,) = session.run(None, feeds)
    width = WIDTHS.get(name, 1)
    assert together.shape == (BATCH, width) and np.isfinite(together).all() and together.std() > 0.02
    if name not in WIDTHS:
        assert ((together >= 0) & (together <= 1)).all() and 0.02 < together.mean() < 0.98
    alone = np.concatenate([session.run(None, {k: v[i : i + 1] for k, v in feeds.items()})[0] for i in range(BATCH)])
    np.testing.assert_allclose(alone, together, rtol=1e-3, atol=1e-5)
    other = draw(found, session, 1)
    constant = {i for i in feeds if i.startswith("sparse_") and found.tables[int(i[7:])].rows < 4}
    for port in feeds.keys() - constant:
        assert np.abs(session.run(None, feeds | {port: other[port]})[0] - together).max() > 1e-4, port


def run(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ("deepfm", "recom_e", "elm_wdl"))
def test_descriptions_make_the_input(tmp_path: Path, name: str) -> None:
    path, description = write(name, tmp_path / f"{name}.onnx", 3, rows=200)
    assert description == tmp_path / f"{name}.features.toml"
    found = load_description(description)
    (joined,) = found.inputs
    graph = onnx.load(path).graph
    widths = {i.name: i.type.tensor_type.shape.dim[1].dim_value for i in graph.input}
    assert widths["x"] == sum(found.width_of(column) for column in found.columns) and joined.name == "x"
    assert list(joined.columns) == [column.name for column in found.columns]
    assert len({table.seed for table in found.tables}) == len(found.tables)
    for column in found.columns:
        table = found.table_of(column)
        assert column.hash is None or (table and column.hash == table.rows <= 200)
    again = write(name, tmp_path / "again.onnx", 3, rows=200)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in (path, description)]


def kinds(found: FeatureDescription) -> dict[tuple[str, str], int]:
    """How many columns of each kind of feature and step."""
    return dict(collections.Counter((found.feature_of(column).kind, column.step) for column in found.columns))


def test_columns_are_the_papers(tmp_path: Path) -> None:
    found = {name: load_description(write(name, tmp_path / f"{name}.onnx", rows=200)[1]) for name in DESCRIBED}
    steps = [("float", "boundaries"), ("int", "hash"), ("string", "hash"), ("tokens", "hash")]
    assert kinds(found["recom_e"]) == dict(zip(steps, (880, 50, 50, 20), strict=True))
    assert kinds(found["recom_f"]) == dict(zip(steps, (1000, 90, 100, 10), strict=True))
    assert kinds(found["deepfm"]) == {("float", "copy"): 13, ("string", "hash"): 26}
    elm = found["elm_wdl"]
    assert kinds(elm) == {
        ("string", "hash"): 14,
        ("tokens", "hash"): 10,
        ("float", "copy"): 10,
        ("tokens", "number"): 2,
    }
    assert {feature.separator for feature in elm.features if feature.kind == "tokens"} == {";"}
    assert sum(elm.width_of(column) for column in elm.columns) == 396


def test_dien_from_history_strings(tmp_path: Path) -> None:
    """The ids are TensorFlow's hashes, from 1 on, at most fifty of a history; the model is that of ids."""
    path, data, described = write("dien_strings", tmp_path / "dien_strings.onnx", 3, rows=ROWS)
    plain = write("dien", tmp_path / "dien_strings.data.onnx", 3, rows=ROWS)
    assert data.read_bytes() == plain[1].read_bytes()
    items = [b"B%03d" % i for i in range(60)]
    raw = {
        "user": [b"A1", b"A2", b""],
        "item": [b"B1", b"B1", b"B2"],
        "category": [b"Books", b"", b"Books"],
        "history_item": [b"\x02".join(items), b"", b"B7\x02B8"],
        "history_category": [b"\x02".join([b"Books"] * 60), b"", b"Books\x02Music"],
    }
    feeds = reference_inputs(load_description(described), raw)
    ids = [farmhash.fingerprint64(item) % (ROWS - 1) + 1 for item in items]
    assert feeds["history_item"].tolist()[0] == ids[:50]
    assert feeds["history_item"].tolist()[1:] == [
        [0] * 50,
        [farmhash.fingerprint64(item) % (ROWS - 1) + 1 for item in ("B7", "B8")] + [0] * 48,
    ]
    session = run(path)
    single = {name: feeds[name].reshape(-1) for name in ("user", "item", "category")}
    (score,) = session.run(None, feeds | single)
    turned = feeds | single | {"history_item": feeds["history_item"][:, ::-1].copy()}
    assert score.shape == (3, 1) and np.isfinite(score).all()
    changed = np.abs(session.run(None, turned)[0] - score) > 1e-7
    assert changed[:, 0].tolist() == [True, False, True]  # the order of a history matters


def test_dien_reads_a_history_up_to_its_end(tmp_path: Path) -> None:
    session = run(write("dien", tmp_path / "dien.onnx", 3, rows=ROWS)[0])
    found = build_recommender(RECOMMENDERS["dien"], 3, "dien.onnx.data", ROWS)
    feeds = draw(found, session, 0)
    ends = np.arange(BATCH) * 3 + 1
    inside = np.arange(dien.STEPS) < ends[:, None]
    feeds["history_item"] *= inside
    (score,) = session.run(None, feeds)
    behind = feeds | {"history_category": np.where(inside, feeds["history_category"], 7)}
    np.testing.assert_allclose(session.run(None, behind)[0], score, rtol=1e-5)
    last = np.arange(dien.STEPS) == ends[:, None] - 1
    changed = feeds | {
        "history_category": np.where(last, (feeds["history_category"] + 1) % ROWS, feeds["history_category"])
    }
    assert (np.abs(session.run(None, changed)[0] - score) > 1e-5).all()
