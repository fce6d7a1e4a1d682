"""A model that counts words, by operators that ONNX Runtime runs: over both protocols, in JSON, with odd texts."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from running_daemon import Daemon, configuration, running, tensor
from text_nets import WEIGHTS, count_words, reviews
from tritonclient.utils import InferenceServerException

import veltair

pytestmark = pytest.mark.slow
CLIENTS = [triton_http, triton_grpc]
TEXTS = ["Very good film", "", "not bad, NOT good", "größe " * 300]


@pytest.fixture(scope="module")
def daemon(fronts: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("reviews")
    veltair.compile(reviews(folder / "reviews.onnx"), folder / "reviews", trials=0, precision="fp32", max_batch=4)
    text = configuration(folder, "reviews", fronts=fronts)
    with running(tmp_path_factory.mktemp("daemon"), text.replace("qos_ms = 20.0", "qos_ms = 100000.0")) as daemon:
        yield daemon


def connected(daemon: Daemon, module: Any) -> Any:
    return module.InferenceServerClient(daemon.http if module is triton_http else daemon.grpc)


def scores(*texts: str) -> Any:
    return np.array([count_words(text) for text in texts], np.float32) @ WEIGHTS


@pytest.mark.parametrize("module", CLIENTS, ids=["http", "grpc"])
def test_each_text_has_its_scores(daemon: Daemon, module: Any) -> None:
    with connected(daemon, module) as client:
        for _ in range(3):  # the first, and those that follow its plan
            for texts in (TEXTS, TEXTS[2:3]):
                given = np.array([text.encode() for text in texts], object)[:, None]
                found = client.infer("reviews", [tensor(module, "text", given, "BYTES")]).as_numpy("y")
                np.testing.assert_allclose(found, scores(*texts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("module", CLIENTS, ids=["http", "grpc"])
def test_odd_bytes_cost_nobody_a_worker(daemon: Daemon, module: Any) -> None:
    with connected(daemon, module) as client:
        for odd in (b"\xff\xfe", b"\xf0\x9f", b"\0", b"good\0bad", b"\xed\xa0\x80", bytes(range(256))):
            given = np.array([[odd]], object)
            found = client.infer("reviews", [tensor(module, "text", given, "BYTES")]).as_numpy("y")
            assert np.isfinite(found).all()
        with pytest.raises(InferenceServerException, match="5000 bytes of text in 1 rows; at most 4096"):
            client.infer("reviews", [tensor(module, "text", np.array([[b"x" * 5000]], object), "BYTES")])
    assert daemon.metric("veltair_worker_deaths_total") == 0


def test_texts_in_json(daemon: Daemon) -> None:
    body = {"inputs": [{"name": "text", "shape": [2, 1], "datatype": "BYTES", "data": TEXTS[:2]}]}
    with urllib.request.urlopen(f"http://{daemon.http}/v2/models/reviews/infer", json.dumps(body).encode()) as answer:
        (found,) = json.load(answer)["outputs"]
    np.testing.assert_allclose(np.reshape(found["data"], (2, 3)), scores(*TEXTS[:2]), rtol=1e-5)
