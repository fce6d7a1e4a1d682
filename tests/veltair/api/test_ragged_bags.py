"""Bags whose lengths come with a query: compiled, verified, in process, through a daemon, and lies about them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from hypothesis import given, settings
from hypothesis import strategies as st
from ragged_models import EXPORTERS, ROOM, bags, exported, ranked, scores, session
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
from veltair.compiler.verify import verify
from veltair.errors import ModelError, RequestError
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.artifact.consistency import find_inconsistency

MAX_BATCH = 4
MODELS = ("mean", "weighted", "lengths", "ranker")  # of the folder `models`
OPTIONS: dict[str, Any] = {
    "trials": 0,
    "precision": "fp32",
    "max_batch": MAX_BATCH,
    "levels": "modelled",
    "bag_room": ROOM,
}
CLIENTS = [triton_http, triton_grpc]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts of models of both exporters, and their files with a suffix."""
    found = tmp_path_factory.mktemp("ragged")
    for name, exporter in zip(MODELS, ("dynamo", "torchscript") * 2, strict=True):
        onnx.save(exported(f"{name}.{exporter}"), found / f"{name}.onnx")
        veltair.compile(found / f"{name}.onnx", found / name, **OPTIONS)
    return found


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[veltair.Daemon]:
    with start(folder, MODELS) as started:
        yield started


@pytest.mark.parametrize("name", MODELS)
def test_verify(folder: Path, name: str) -> None:
    found = load_artifact(folder / name)
    report = verify(found, folder / f"{name}.onnx")
    assert report.ok, report.mismatches
    assert {layer.op for layer in found.manifest.layers} <= {"lookups", "matmul", "concat_rows", "elementwise"}


@pytest.mark.parametrize("name", ["mean", "weighted", "lengths"])
def test_any_bags_in_process(folder: Path, name: str) -> None:
    proto = onnx.load(folder / f"{name}.onnx")
    with veltair.load(folder / name, threads=1) as model:

        @settings(max_examples=60, deadline=None)
        @given(st.lists(st.integers(0, ROOM), min_size=1, max_size=MAX_BATCH), st.integers(0, 1 << 30))
        def check(given_lengths: list[int], seed: int) -> None:
            lengths = np.array(given_lengths)
            feeds = bags(name, lengths, np.random.default_rng(seed))
            np.testing.assert_allclose(model(feeds)["y"], scores(proto, name, feeds, lengths), atol=1e-4)

        check()


def test_empty_bags_alone(folder: Path) -> None:
    with veltair.load(folder / "lengths", threads=1) as model:
        nothing = {"ids": np.zeros(0, np.int64), "lengths": np.zeros(2, np.int64)}
        expected = scores(onnx.load(folder / "lengths.onnx"), "lengths", nothing, nothing["lengths"])
        np.testing.assert_allclose(model(nothing)["y"], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["ends", "sum"])
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_other_forms_are_found(kind: str, exporter: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(exported(f"{kind}.{exporter}"), path)
    model = load_model(path, MAX_BATCH, bag_room={"ids": 3})
    assert [(port.name, port.shape) for port in model.inputs] == [("ids", (-1, 3)), ("ids/lengths", (-1, 1, 1))]
    assert model.mergeable
    with pytest.raises(ModelError, match="no bags of ids 'clicks'"):
        load_model(path, bag_room={"clicks": 3})


@pytest.mark.parametrize("api", CLIENTS)
def test_stock_clients(daemon: veltair.Daemon, folder: Path, api: Any) -> None:
    address = daemon.http if api is triton_http else daemon.grpc
    reference, rng = session(onnx.load(folder / "ranker.onnx")), np.random.default_rng(3)
    with api.InferenceServerClient(address) as client:
        for samples in (1, 2, MAX_BATCH):
            feeds = ranked(rng.integers(1, ROOM + 1, (2, samples)), rng)
            found = client.infer("ranker", sent(api, feeds)).as_numpy("y")
            np.testing.assert_allclose(found, reference.run(None, feeds)[0], atol=1e-5)


def test_queries_of_many_clients_at_once(daemon: veltair.Daemon, folder: Path) -> None:
    """One worker: while one of them runs, others wait, and share a batch. Some of them are wrong."""
    reference, rng = session(onnx.load(folder / "ranker.onnx")), np.random.default_rng(5)
    queries = [ranked(rng.integers(1, ROOM + 1, (2, rng.integers(1, 3))), rng) for _ in range(120)]
    for feeds in queries[::7]:
        feeds["tag_offsets"] = feeds["tag_offsets"] + 1

    for i, (feeds, found) in enumerate(zip(queries, ask_at_once(daemon, "ranker", queries), strict=True)):
        if i % 7 == 0:
            assert "begins with 1; expected 0" in found
        else:
            np.testing.assert_allclose(found, reference.run(None, feeds)[0], atol=1e-5)
    check_that_batches_were_shared(daemon, "ranker", queries)


IDS = np.array([1, 2, 3])
LIES: list[tuple[str, dict[str, Any], str]] = [
    ("mean", {"ids": IDS, "offsets": [0, 2, 1]}, r"'offsets' falls from 2 at \[1\] to 1"),
    ("mean", {"ids": IDS, "offsets": [0, 4]}, r"'offsets' has 4 at \[1\]; 'ids' has 3 ids"),
    ("mean", {"ids": IDS, "offsets": [0, -1]}, r"'offsets' has -1 at \[1\]"),
    ("mean", {"ids": IDS, "offsets": [0, -(2**63)]}, r"'offsets' has -9223372036854775808 at \[1\]"),
    ("mean", {"ids": IDS, "offsets": [1]}, "begins with 1; expected 0"),
    ("mean", {"ids": IDS + 9, "offsets": [0]}, r"'ids' has 11 at \[1\]; ids go from 0 to 10"),
    ("mean", {"ids": IDS - 2, "offsets": [0]}, r"'ids' has -1 at \[0\]"),
    ("mean", {"ids": np.arange(6), "offsets": [0]}, "gives bag 0 6 ids of 'ids'; at most 5 are taken"),
    ("mean", {"ids": np.zeros(21, np.int64), "offsets": [0, 5, 10, 15]}, r"has shape \[0…20\], got \[21\]"),
    ("mean", {"ids": IDS, "offsets": []}, r"'offsets' has shape \[1…4\], got \[0\]"),
    ("mean", {"ids": IDS}, "input 'offsets' is missing"),
    ("lengths", {"ids": IDS, "lengths": [1, 1]}, "adds up to 2; 'ids' has 3 ids"),
    ("lengths", {"ids": IDS, "lengths": [4, -1]}, r"'lengths' has 4 at \[0\]"),
    ("lengths", {"ids": IDS, "lengths": [3, 3, 3, 3]}, "adds up to 12"),
    (
        "weighted",
        {"ids": IDS, "offsets": [0], "weights": np.ones(2, np.float32)},
        "'weights' has 2 values, 'ids' has 3",
    ),
    (
        "ranker",
        ranked(np.array([[2, 1], [1, 1]]), np.random.default_rng(0)) | {"tags": IDS, "tag_offsets": np.array([0])},
        "'tag_offsets' has batch 1|has batch",
    ),
]


@pytest.mark.parametrize(("name", "feeds", "message"), LIES)
def test_lies_are_refused(daemon: veltair.Daemon, folder: Path, name: str, feeds: Any, message: str) -> None:
    feeds = {key: np.asarray(value, None if len(value) else np.int64) for key, value in feeds.items()}
    with veltair.load(folder / name, threads=1) as model, pytest.raises(RequestError, match=message):
        model(feeds)
    check_that_both_protocols_refuse(daemon, name, feeds, message)


def test_a_plain_json_body(daemon: veltair.Daemon) -> None:
    def ask(ids: list[int], offsets: list[int]) -> Any:
        tensors = {"ids": ids, "offsets": offsets}
        inputs = [{"name": n, "datatype": "INT64", "shape": [len(v)], "data": v} for n, v in tensors.items()]
        url = f"http://{daemon.http}/v2/models/mean/infer"
        with urllib.request.urlopen(url, json.dumps({"inputs": inputs}).encode()) as answer:
            return json.load(answer)["outputs"][0]

    assert ask([1, 2, 3], [0, 0, 2])["shape"] == [3, 2]
    assert ask([], [0])["shape"] == [1, 2]
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask([1, 2, 3], [0, 3, 2])
    with refused.value as answer:
        assert answer.code == 400


@pytest.mark.parametrize("name", MODELS)
def test_random_payloads_fit(daemon: veltair.Daemon, name: str) -> None:
    check_random_payloads(daemon, name, (1, MAX_BATCH))


def test_what_is_none_of_these_is_refused(tmp_path: Path) -> None:
    proto = exported("ranker.torchscript")
    proto.graph.output.append(onnx.helper.make_tensor_value_info("more", onnx.TensorProto.INT64, ["clicks_n"]))
    proto.graph.node.append(onnx.helper.make_node("Neg", ["clicks"], ["more"], name="negated"))
    onnx.save(proto, tmp_path / "more.onnx")
    with pytest.raises(ModelError, match=r"node 'negated' \(Neg\) reads input 'clicks', which is one of bags"):
        veltair.compile(tmp_path / "more.onnx", tmp_path / "a", **OPTIONS)


@pytest.mark.parametrize(
    "changes", [{"room": 6}, {"room": 0}, {"lengths": "ids"}, {"bounds": "ids"}, {"weights": ("ids/lengths",)}]
)
def test_a_manifest_with_other_bags_is_refused(folder: Path, changes: dict[str, Any]) -> None:
    found = load_artifact(folder / "mean")
    (own,) = found.manifest.ragged
    changed = msgspec.structs.replace(found.manifest, ragged=(msgspec.structs.replace(own, **changes),))
    weights = found.weights.stat().st_size
    assert not find_inconsistency(found.manifest, weights)
    assert "bags of" in find_inconsistency(changed, weights)
