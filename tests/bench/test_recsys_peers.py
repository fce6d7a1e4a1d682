"""The peers of recommendation benches do what they are compared for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from bench.at_once import fairest_ms, time_at_once
from bench.recsys.atrec.__main__ import expected_of, peers_of
from bench.recsys.atrec.subgraphs import one_hot_sum
from bench.recsys.from_request import RequestReader
from bench.recsys.model_engines import load_at_once
from bench.recsys.models import peer_ms
from veltair.compiler.features.description_file import parse_description
from veltair.compiler.features.feature_layout import FeatureLayout, buffer_of
from veltair.compiler.features.random_features import draw_features, pack_features


def test_requests_at_once_run_side_by_side() -> None:
    met, seen = threading.Barrier(2, timeout=60), set[int]()

    def run() -> None:
        if threading.get_ident() not in seen:
            met.wait()  # passes only while the other one runs
            seen.add(threading.get_ident())

    assert time_at_once([run, run], 0.0) > 0
    assert len(seen) == 2


def test_a_failed_request_ends_all() -> None:
    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        time_at_once([fail, lambda: None], 0.0)


def test_a_peer_that_uses_its_threads_keeps_one_request() -> None:
    assert fairest_ms(12.0, 9.0, 6.0) == 9.0
    assert fairest_ms(10.0, 9.0, 6.0) == 6.0
    times: Any = {(8, 1, "e", "p", None): 10.0, (8, 2, "e", "p", None): 9.0, (8, 2, "e", "p", "at once"): 6.0}
    assert peer_ms(times, 8, 2, ("e", "p")) == 6.0
    assert peer_ms(times, 8, 1, ("e", "p")) == 10.0


@pytest.mark.parametrize("engine", ["onnxruntime"])
def test_an_engine_takes_two_requests_at_once(engine: str, tmp_path: Path) -> None:
    case = one_hot_sum(6, 3, 5, 10)
    onnx.save(case.model, tmp_path / "model.onnx")
    runs = load_at_once(engine, tmp_path / "model.onnx", case.feeds, 2, "fp32")
    assert len(runs) == 2
    assert time_at_once(runs, 0.0) > 0


@pytest.mark.parametrize("width", [0, 4])
def test_counts_are_sums_of_one_hots(width: int) -> None:
    case = one_hot_sum(6, 3, 5, 10, width)
    peers = peers_of(case, 1)
    assert set(peers) == {"onnxruntime", "scatter_add", "bincount"}
    (expected,) = expected_of(peers)  # all agree
    assert expected.shape == (6, width or 30)
    plain = ort.InferenceSession(case.model.SerializeToString()).run(None, case.feeds)[0]
    np.testing.assert_array_equal(plain, expected)


def test_a_request_is_read_into_packed_features() -> None:
    raw = {
        "features": [{"name": "a", "kind": "float"}, {"name": "b", "kind": "string"}, {"name": "c", "kind": "int"}],
        "columns": [
            {"feature": "a", "table": "a", "boundaries": [0.0, 1.0]},
            {"feature": "b", "table": "b", "hash": 5},
            {"feature": "c", "table": "c", "hash": 5},
        ],
        "tables": [{"name": n, "rows": rows, "dim": 2, "seed": 0} for n, rows in (("a", 3), ("b", 5), ("c", 5))],
        "inputs": [{"name": "x", "columns": ["a", "b", "c"]}],
    }
    description = parse_description(raw, Path("some.toml"))
    values = draw_features(description, 4, np.random.default_rng(0))
    layout = FeatureLayout.from_description(description)
    found = dict(
        zip([buffer_of(p.name) for p in layout.packed_buffers], RequestReader(layout, values, 4).arrays, strict=True)
    )
    for name, packed in pack_features(description, values, 4).items():
        np.testing.assert_array_equal(found[name], packed)
