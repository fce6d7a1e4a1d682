"""Maxima, padding, matrices of ids, features one after the other: compiled, verified, served, and lies about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tritonclient.http as triton_http
from numpy.typing import NDArray
from ragged_models import ROOM, Feeds, exported, session
from run_kernels import run_graph, within_room
from served_bags import (
    ask_at_once,
    check_random_payloads,
    check_that_batches_were_shared,
    check_that_both_protocols_refuse,
    sent,
    start,
)

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import LOWERING_PHASES, Lowering
from veltair.compiler.verify import verify
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.consistency import find_inconsistency

MAX_BATCH = 4
FEATURE_ROWS = (11, 7, 1000, 5)  # of "keyed"; nothing reads the third feature
MODELS = {  # files whose loops ONNX Runtime runs for empty bags, too
    "greatest": "greatest.dynamo",
    "padded": "padded.dynamo",
    "matrix_padded": "matrix_padded.dynamo",
    "keyed": "keyed.dynamo",
    "keyed_weighted": "keyed_weighted.torchscript",
}
SERVED = ("padded", "keyed", "keyed_weighted")


def query(name: str, samples: int, rng: np.random.Generator) -> Feeds:
    if name == "matrix_padded":
        return {"ids": rng.integers(0, 5, (samples, 2))}
    if not name.startswith("keyed"):
        lengths = rng.integers(0, ROOM + 1, samples)
        ids = rng.integers(0, 5, lengths.sum())  # of which some are padding
        return {"ids": ids, "offsets": lengths.cumsum() - lengths}
    counts = rng.integers(0, ROOM + 1, (len(FEATURE_ROWS), samples))
    values = [rng.integers(0, rows, own.sum()) for rows, own in zip(FEATURE_ROWS, counts, strict=True)]
    found: Feeds = {"values": np.concatenate(values), "lengths": counts.reshape(-1)}
    found["dense"] = rng.standard_normal((samples, 3)).astype(np.float32)
    weights = {"weights": rng.standard_normal(counts.sum()).astype(np.float32)}
    return found | weights if name == "keyed_weighted" else found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts, and their files with a suffix."""
    found = tmp_path_factory.mktemp("bags")
    for name, file in MODELS.items():
        path = found / f"{name}.onnx"
        onnx.save(exported(file), path)
        options: dict[str, Any] = {"trials": 0, "precision": "fp32", "levels": "modelled", "bag_room": ROOM}
        if name == "matrix_padded":
            del options["bag_room"]
        veltair.compile(path, found / name, max_batch=MAX_BATCH, **options)
    return found


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[veltair.Daemon]:
    with start(folder, SERVED) as started:
        yield started


@pytest.mark.parametrize("name", MODELS)
def test_bags_are_layers_and_agree_with_onnx_runtime(folder: Path, name: str) -> None:
    found, reference, rng = load_artifact(folder / name), session(exported(MODELS[name])), np.random.default_rng(7)
    report = verify(found, folder / f"{name}.onnx")
    assert report.ok, report.mismatches
    ops = [layer.op for layer in found.manifest.layers]
    assert set(ops) <= {"lookups", "matmul", "concat_rows", "stitched"}
    assert ops.count("lookups") == {"greatest": 1, "padded": 3, "matrix_padded": 3}.get(name, 4)
    with veltair.load(folder / name, threads=1) as model:
        for _ in range(40):
            feeds = query(name, int(rng.integers(1, MAX_BATCH + 1)), rng)
            np.testing.assert_allclose(model(feeds)["y"], reference.run(None, feeds)[0], atol=1e-4)


@pytest.mark.parametrize(
    ("file", "inputs"),
    [
        ("greatest.torchscript", [("ids", (-1, ROOM)), ("ids/lengths", (-1, 1, 1))]),
        ("matrix.dynamo", [("ids", (-1, 2)), ("weights", (-1, 2))]),
        ("matrix.torchscript", [("ids", (-1, 2)), ("weights", (-1, 2))]),
        ("keyed.torchscript", [("values/0", (-1, ROOM)), ("values/1", (-1, ROOM)), ("values/3", (-1, ROOM))]),
        ("keyed_split.dynamo", [("values/0", (-1, ROOM)), ("values/1", (-1, ROOM)), ("values/3", (-1, ROOM))]),
    ],
)
def test_other_spellings_are_found(file: str, inputs: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(exported(file), path)
    model = load_model(path, MAX_BATCH, bag_room={} if "matrix" in file else {"": ROOM})
    assert [(port.name, port.shape) for port in model.inputs][: len(inputs)] == inputs
    assert not {"Loop", "If", "SequenceInsert"} & {node.op_type for node in model.nodes}


def test_a_matrix_of_another_width_is_no_matrix_of_bags(tmp_path: Path) -> None:
    """Bags begin at every second id, and the rows of the matrix have four: what a query gets depends on its batch."""
    proto = exported("matrix.dynamo")
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[1].dim_value = 4
    onnx.save(proto, tmp_path / "model.onnx")
    lowering = Lowering(precision="fp32")
    lowering.model = load_model(tmp_path / "model.onnx", MAX_BATCH)
    assert not lowering.model.ragged and not lowering.model.mergeable
    for phase in LOWERING_PHASES:
        phase(lowering)
    rng, reference = np.random.default_rng(0), session(proto)
    for batch in (1, 3):
        weights = rng.standard_normal((batch, 4)).astype(np.float32)
        feeds = {"ids": rng.integers(0, 5, (batch, 4)), "weights": weights}
        expected = reference.run(None, feeds)[0]
        found, extents = run_graph(lowering.graph, feeds, batch)  # a loop makes it, whatever the file states
        assert tuple(extents) == expected.shape
        np.testing.assert_allclose(within_room(found, expected.shape), expected, atol=1e-5)


@pytest.mark.parametrize("name", SERVED)
def test_queries_of_many_clients_share_batches(daemon: veltair.Daemon, name: str) -> None:
    reference, rng = session(exported(MODELS[name])), np.random.default_rng(5)
    queries = [query(name, int(rng.integers(1, 3)), rng) for _ in range(60)]
    bounds = "offsets" if name == "padded" else "lengths"
    for feeds in queries[::7]:
        feeds[bounds] = feeds[bounds] + 1

    for i, (feeds, found) in enumerate(zip(queries, ask_at_once(daemon, name, queries), strict=True)):
        if i % 7 == 0:
            assert isinstance(found, str) and f"input '{bounds}'" in found
        else:
            np.testing.assert_allclose(found, reference.run(None, feeds)[0], atol=1e-4)
    check_that_batches_were_shared(daemon, name, queries)
    with triton_http.InferenceServerClient(daemon.http) as http:
        found = http.infer(name, sent(triton_http, queries[1])).as_numpy("y")
        np.testing.assert_allclose(found, reference.run(None, queries[1])[0], atol=1e-4)


def keyed(values: list[int], lengths: list[int], samples: int = 1) -> dict[str, NDArray[Any]]:
    dense = np.zeros((samples, 3), np.float32)
    return {"values": np.array(values, np.int64), "lengths": np.array(lengths, np.int64), "dense": dense}


LIES: list[tuple[dict[str, Any], str]] = [
    (keyed([1, 2], [1, 1, 1, 0]), "adds up to 3; 'values' has 2 ids"),
    (keyed([1, 2], [3, -1, 0, 0]), r"'lengths' has 3 at \[0\]; 'values' has 2 ids"),
    (keyed([1, 2], [2, -1, 1, 0]), r"'lengths' has -1 at \[1\]"),
    (keyed([1], [0, 1, 0, 0, 0]), "has 5 lengths; expected a multiple of 4"),
    (keyed([1], [1, 0, 0]), r"'lengths' has shape \[4…16\], got \[3\]"),
    (keyed([1], [0] * 17), r"'lengths' has shape \[4…16\], got \[17\]"),
    (keyed([1], [1] + [0] * 7), "'lengths' has 2 bags, other inputs have 1 samples"),
    (keyed([10, 7], [1, 1, 0, 0]), r"'values' has 7 at \[1\], an id of feature 1; its ids go from 0 to 6"),
    (keyed([0, 1, 5], [1, 0, 1, 1]), r"'values' has 5 at \[2\], an id of feature 3; its ids go from 0 to 4"),
    (keyed([-1], [1, 0, 0, 0]), r"'values' has -1 at \[0\], an id of feature 0"),
    (keyed([0] * 6, [6, 0, 0, 0]), "gives bag 0 6 ids of 'values'; at most 5 are taken"),
]


@pytest.mark.parametrize(("feeds", "message"), LIES)
def test_lies_about_features_are_refused(daemon: veltair.Daemon, feeds: Any, message: str) -> None:
    check_that_both_protocols_refuse(daemon, "keyed", feeds, message)


@pytest.mark.parametrize("name", SERVED)
def test_random_payloads_fit(daemon: veltair.Daemon, name: str) -> None:
    check_random_payloads(daemon, name, (1, MAX_BATCH))


@pytest.mark.parametrize(
    "changes", [{"features": 0}, {"features": 3}, {"used": ()}, {"used": (0, 0, 3)}, {"used": (-1,)}]
)
def test_a_manifest_with_other_features_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    found = load_artifact(folder / "keyed")
    (own,) = found.manifest.ragged
    changed = msgspec.structs.replace(found.manifest, ragged=(msgspec.structs.replace(own, **changes),))
    weights = found.weights.stat().st_size
    assert not find_inconsistency(found.manifest, weights)
    assert "bags of" in find_inconsistency(changed, weights)
