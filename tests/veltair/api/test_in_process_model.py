"""`load`: the same answers in this process as from ONNX Runtime, and as free a thread as before."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from example_models import digests, mlp_outputs

import veltair
from veltair.api import in_process_model
from veltair.errors import ArtifactError, ConfigError, RequestError, VeltairError

pytestmark = pytest.mark.slow
X = np.random.default_rng(4).standard_normal((5, 16), dtype=np.float32)


@pytest.mark.parametrize("threads", [None, 1])
def test_arrays_in_and_out(artifacts: Path, threads: int | None) -> None:
    before = os.sched_getaffinity(0)
    with veltair.load(artifacts / "mlp", threads=threads) as model, veltair.load(str(artifacts / "words")) as words:
        for _ in range(3):
            np.testing.assert_allclose(model(X)["y"], mlp_outputs(X), rtol=1e-4, atol=1e-4)
            found = words({"name": [["ann"]], "text": [[b"b"]], "id": [[9]]})["digest"]
            assert found.tolist() == digests([b"ann"], [b"b"], [9])
        assert os.sched_getaffinity(0) == before


def test_answers_are_the_callers_own(artifacts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more batch sizes than have arrays that stay, and of the same one twice."""
    monkeypatch.setattr(in_process_model, "KEPT_BATCHES", 2)
    with veltair.load(artifacts / "mlp") as model:
        batches = [np.full((rows, 16), rows, np.float32) for rows in (*range(1, 6), 3, 3, 1)]
        found = [model(batch)["y"] for batch in batches]
        found[-1][...] = 0
        again = model(batches[-1])["y"]
    for batch, y in zip(batches, [*found[:-1], again], strict=True):
        np.testing.assert_allclose(y, mlp_outputs(batch), rtol=1e-4, atol=1e-4)


def test_threads_take_turns(artifacts: Path) -> None:
    wrong = []
    with veltair.load(artifacts / "mlp") as model:

        def ask(rows: int) -> None:
            expected = mlp_outputs(X[:rows])
            for _ in range(50):
                if not np.allclose(model(X[:rows])["y"], expected, rtol=1e-4, atol=1e-4):
                    wrong.append(rows)

        threads = [threading.Thread(target=ask, args=(rows,)) for rows in (1, 2, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_wrong_inputs_are_named(artifacts: Path) -> None:
    with veltair.load(veltair.load_artifact(artifacts / "mlp")) as model:
        for inputs, expected in (
            ({"z": X}, "no input 'z'"),
            (X[:, :3], "input 'x' has shape"),
            (X.astype(np.float64), "input 'x' is FP32, got 'FP64'"),
            ({}, "input 'x' is missing"),
            (np.zeros((99, 16), np.float32), "has shape"),
        ):
            with pytest.raises(RequestError, match=expected):
                model(inputs)  # type: ignore[arg-type]
    with pytest.raises(VeltairError, match="the model is closed"):
        model(X)


def test_what_cannot_be_loaded(artifacts: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no model artifact there"):
        veltair.load(tmp_path)
    with pytest.raises(ConfigError, match="threads: this process may use 1 …"):
        veltair.load(artifacts / "mlp", threads=1000)


def test_what_an_artifact_says_of_itself(artifacts: Path) -> None:
    artifact = veltair.load_artifact(artifacts / "mlp")
    assert [port.name for port in artifact.inputs] == ["x"] and [port.name for port in artifact.outputs] == ["y"]
    assert [layer.name for layer in artifact.layers] == ["dense0", "dense1", "dense2"]
    assert "input   x  float32 (batch, 16)" in artifact.summary()
