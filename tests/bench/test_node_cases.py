"""The bench of ONNX's node cases: what a case may end as, and that a crash costs itself alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx_protos import model, node, port

from bench import node_cases


def test_what_a_case_ends_as(tmp_path: Path) -> None:
    proto, feeds = model([node("Relu", "x", "y")], [port("x")], [port("y")], []), {"x": -np.ones((2, 4), np.float32)}
    zeros = np.zeros((2, 4), np.float32)
    assert node_cases.outcome(tmp_path / "right", proto, feeds, [zeros]) == "ours"
    refused = model([node("RandomUniformLike", "x", "y")], [port("x")], [port("y")], [])
    assert node_cases.outcome(tmp_path / "refused", refused, feeds, [zeros]).startswith("refused: model.onnx: node")


def test_what_is_wrong_is_said() -> None:
    zeros = np.zeros((2, 4), np.float32)
    assert node_cases.difference({"y": zeros}, [zeros]) is None
    assert node_cases.difference({"y": zeros}, [zeros + 1]) == "y is off by 1 of its largest value"
    assert node_cases.difference({"y": zeros}, [zeros.astype(int)]) == "y is float32, expected int64"
    assert node_cases.difference({"y": zeros}, [zeros.T]) == "y has shape (2, 4), expected (4, 2)"


def test_a_case_that_crashes_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import sys, json; print('ready', flush=True); names = json.loads(sys.stdin.readline())\n"
    script += "for name in names:\n    if name == 'bad': sys.exit(3)\n    print(json.dumps('ours'), flush=True)"
    monkeypatch.setattr(node_cases, "WORKER", (sys.executable, "-c", script))
    found = dict(node_cases._outcomes(["a", "bad", "b"], 1, 60, 2))
    assert found == {"a": "ours", "bad": "crashes: code 3", "b": "ours"}


def test_results_name_their_environment() -> None:
    found = json.loads((node_cases.RESULTS / "node-cases.json").read_text("utf-8"))
    assert found["environment"]
    assert sum(found["counts"].values()) == len(found["outcomes"])
