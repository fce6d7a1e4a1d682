"""Models whose queries choose a dimension, against ONNX Runtime: verified, in process and through a daemon."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from open_dimensions import LONGEST, MODELS, VOCABULARY, Reference, dimension_of, query, save_all

import veltair
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.verify import verify
from veltair.errors import ArtifactError, ModelError, RequestError
from veltair.profiles.artifact.artifact_folder import Artifact, decode_manifest, load_artifact
from veltair.profiles.artifact.consistency import find_inconsistency

EXTENTS = range(1, LONGEST + 1)
MAX_BATCH = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models' files, and their artifacts without a suffix."""
    found = tmp_path_factory.mktemp("dimensions")
    save_all(found)
    for name in MODELS:
        veltair.compile(
            found / f"{name}.onnx",
            found / name,
            dims={dimension_of(name): (1, LONGEST)},
            trials=0,
            precision="fp32",
            max_batch=MAX_BATCH,
            levels="modelled",
        )
    return found


@pytest.fixture(scope="module")
def daemon(folder: Path) -> Iterator[veltair.Daemon]:
    tenants = [veltair.TenantConfig(name=name, artifact=str(folder / name), qos_ms=60_000.0) for name in MODELS]
    with veltair.serve(tenants, workers=2) as started:
        yield started


@pytest.mark.parametrize("name", MODELS)
def test_every_extent_in_process(folder: Path, name: str) -> None:
    reference = Reference(name)
    with veltair.load(folder / name, threads=1) as model:
        for extent in EXTENTS:
            for batch in (1, MAX_BATCH):
                feeds = query(name, extent, batch)
                reference.check(feeds, model(feeds))


def test_verify_takes_the_bounds_and_every_bucket(folder: Path) -> None:
    for name in ("masked", "image", "decoder", "causal", "causal_last"):
        report = verify(load_artifact(folder / name), folder / f"{name}.onnx")
        assert report.ok and {1, LONGEST} <= set(report.extents)
    for name in ("masked", "causal", "causal_last"):
        assert load_artifact(folder / name).manifest.dimension.extents == (9, 8)  # type: ignore[union-attr]


def test_weights_are_there_once(folder: Path) -> None:
    manifest = load_artifact(folder / "masked").manifest
    tables = [
        {(b.offset, b.bytes_at(1)) for b in each.buffers if b.kind == "weight"}
        for each in (manifest, *manifest.buckets)
    ]
    assert tables[0] & tables[1]


@pytest.mark.parametrize("scheme", ["grpc", "http"])
@pytest.mark.parametrize("name", MODELS)
def test_every_extent_through_a_daemon(daemon: veltair.Daemon, name: str, scheme: str) -> None:
    reference = Reference(name)
    address = daemon.grpc if scheme == "grpc" else daemon.http
    with veltair.Client(f"{scheme}://{address}") as client:
        assert client.describe(name).inputs[0].shape.count(-1) == 2
        for extent in EXTENTS:
            feeds = query(name, extent, batch=1 + extent % MAX_BATCH)
            reference.check(feeds, client.infer(name, feeds).outputs)


@pytest.mark.parametrize("name", ["masked", "causal", "causal_last"])
def test_queries_of_many_extents_at_once(daemon: veltair.Daemon, name: str) -> None:
    """Some share a batch."""
    reference = Reference(name)
    queries = [query(name, extent, 1) for extent in [*EXTENTS] * 6]
    local = threading.local()

    def ask(feeds: Any) -> Any:
        if not hasattr(local, "client"):
            local.client = veltair.Client(f"grpc://{daemon.grpc}")
        return local.client.infer(name, feeds).outputs

    with ThreadPoolExecutor(8) as pool:
        for feeds, found in zip(queries, pool.map(ask, queries), strict=True):
            reference.check(feeds, found)


def test_queries_that_do_not_fit(daemon: veltair.Daemon, folder: Path) -> None:
    ids, mask = np.zeros((1, 5), np.int64), np.ones((1, 5), np.int64)
    wrong = [
        ({"ids": np.zeros((1, 10), np.int64), "mask": np.ones((1, 10), np.int64)}, r"\[1…2, 1…9\], got \[1, 10\]"),
        ({"ids": ids, "mask": mask[:, :4]}, r"input 'mask' has 4 along dimension 1 \(seq\), 'ids' has 5"),
        ({"ids": ids, "mask": 0 * mask}, "expected a one in each row"),
        ({"ids": ids, "mask": 2 * mask}, "expected zeros and ones"),
        ({"ids": ids + VOCABULARY, "mask": mask}, "ids go from 0 to 12"),
    ]
    with veltair.Client(f"grpc://{daemon.grpc}") as client, veltair.load(folder / "masked", threads=1) as model:
        for feeds, message in wrong:
            for ask in (model, lambda given: client.infer("masked", given)):
                with pytest.raises(RequestError, match=message):
                    ask(feeds)
    body = {"inputs": [{"name": n, "datatype": "INT64", "shape": [1, 10], "data": [[1] * 10]} for n in ("ids", "mask")]}
    url = f"http://{daemon.http}/v2/models/masked/infer"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, json.dumps(body).encode())
    with refused.value as answer:
        assert answer.code == 400
        assert "1…9" in json.load(answer)["error"]


def test_an_input_that_is_longer_than_the_dimension(daemon: veltair.Daemon, folder: Path) -> None:
    right = query("decoder", 5, 1)
    wrong = [
        (right | {"mask": np.ones((1, 5), np.int64)}, r"'mask' has 5 along dimension 1 \(past \+ 1\), 'past' has 5"),
        (right | {"mask": np.ones((1, LONGEST + 2), np.int64)}, r"1…2, 2…10\], got \[1, 11\]"),
        (right | {"mask": np.ones((1, 1), np.int64)}, r"1…2, 2…10\], got \[1, 1\]"),
    ]
    with veltair.Client(f"grpc://{daemon.grpc}") as client, veltair.load(folder / "decoder", threads=1) as model:
        for feeds, message in wrong:
            for ask in (model, lambda given: client.infer("decoder", given)):
                with pytest.raises(RequestError, match=message):
                    ask(feeds)


def test_without_onnx_runtime_only_what_pads(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"would be left to ONNX Runtime: .*ReduceMean"):
        veltair.compile(folder / "mean.onnx", tmp_path / "a", dims={"seq": (1, 9)}, fallback=False)
    with pytest.raises(ModelError, match="is symbolic"):
        load_model(folder / "mean.onnx")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"buckets": ()},
        {"dimension": None},
        {"dimension": {"extents": (9, 7)}},
        {"dimension": {"extents": (9, 0)}},
        {"dimension": {"low": 9}},
        {"dimension": {"axes": {"ids": (2,), "mask": (1,)}}},
        {"dimension": {"axes": {}}},
        {"dimension": {"masks": ("nothing",)}},
        {"dimension": {"exact": True}},
        {"dimension": {"last": {"tokens": False}}},
    ],
)
def test_a_manifest_that_lies_about_its_dimension(folder: Path, change: dict[str, Any]) -> None:
    artifact = load_artifact(folder / "masked")
    if isinstance(given := change.get("dimension"), dict):
        change = {"dimension": msgspec.structs.replace(artifact.manifest.dimension, **given)}
    altered = msgspec.structs.replace(artifact.manifest, **change)
    assert find_inconsistency(altered, artifact.weights.stat().st_size)


def test_buckets_of_buckets_are_refused(folder: Path) -> None:
    artifact: Artifact = load_artifact(folder / "masked")
    whole = artifact.manifest
    nested = msgspec.structs.replace(whole, buckets=(msgspec.structs.replace(whole.buckets[0], buckets=(whole,)),))
    assert "no model of its own" in find_inconsistency(nested, artifact.weights.stat().st_size)
    text = msgspec.json.encode(msgspec.structs.replace(whole, buckets=()))
    cut = text.index(b'"buckets":[') + len(b'"buckets":[')
    with pytest.raises(ArtifactError):
        decode_manifest(text[:cut] + 20_000 * text[:cut], folder)
