"""Benches of small models: what a case may end as, that a crash costs itself alone, and that random ones run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from onnx_protos import model, node, port

from bench.case_outcomes import difference, outcome, right_outputs
from bench.case_workers import outcomes_of
from bench.paths import RESULTS
from bench.random_graphs.random_graph import RandomGraph


def test_what_a_case_ends_as(tmp_path: Path) -> None:
    proto, feeds = model([node("Relu", "x", "y")], [port("x")], [port("y")], []), {"x": -np.ones((2, 4), np.float32)}
    zeros = np.zeros((2, 4), np.float32)
    assert outcome(tmp_path / "right", proto, [(feeds, [zeros])]) == "ours"
    assert outcome(tmp_path / "wrong", proto, [(feeds, [zeros + 1])]).startswith("wrong: y is off by 1 of its largest")
    refused = model([node("RandomUniformLike", "x", "y")], [port("x")], [port("y")], [])
    assert outcome(tmp_path / "refused", refused, [(feeds, [zeros])]).startswith("refused: model.onnx: node")


def test_what_is_wrong_is_said() -> None:
    zeros = np.zeros((2, 4), np.float32)
    assert difference({"y": zeros}, [zeros], 0.5) is None
    assert difference({"y": zeros}, [zeros + 1], 0.5) == "y is off by 1 of its largest value"
    assert difference({"y": zeros}, [zeros.astype(int)], 0.5) == "y is float32, expected int64"
    assert difference({"y": zeros}, [zeros.T], 0.5) == "y has shape (2, 4), expected (4, 2)"


def test_a_case_that_crashes_costs_itself_alone() -> None:
    script = "import sys, json; print('ready', flush=True); names = json.loads(sys.stdin.readline())\n"
    script += "for name in names:\n    if name == 'bad': sys.exit(3)\n    print(json.dumps('ours'), flush=True)"
    found = dict(outcomes_of(["a", "bad", "b"], (sys.executable, "-c", script), 60, 2))
    assert found == {"a": "ours", "bad": "crashes: code 3", "b": "ours"}


def test_random_networks_follow_from_their_seeds_and_run() -> None:
    for seed in range(5):
        first, second = (RandomGraph(seed, open_length=seed % 2 == 1) for _ in range(2))
        first.grow(6)
        second.grow(6)
        proto = first.model()
        assert proto.SerializeToString(deterministic=True) == second.model().SerializeToString(deterministic=True)
        assert len(proto.graph.node) >= 6
        found = right_outputs(proto, first.feeds(4))
        assert found.keys() == {value.name for value in proto.graph.output} and all(a.size for a in found.values())


def test_results_name_their_environment() -> None:
    for name in ("node-cases", "random-graphs"):
        found = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        assert found["environment"]
        assert sum(found["counts"].values()) == len(found["outcomes"])
