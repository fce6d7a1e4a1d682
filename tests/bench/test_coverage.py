"""The bench of networks that people bring: its list, its processes with limits, its table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from onnx_nets import Net, normal

from bench.coverage import __main__ as coverage
from bench.coverage import exported, table, trial
from bench.coverage.trial import Limits, run_command, try_network


def test_the_list_has_a_builder_for_each_family() -> None:
    found = list(coverage.networks(["*"]))
    assert {network.family for network in found} == exported.BUILDERS.keys()
    assert len({(network.family, network.name) for network in found}) >= 120


def test_a_network_is_tried_as_a_user_would(tmp_path: Path) -> None:
    net = Net(x=["n", 8])
    path = net.save(tmp_path / "net.onnx", net("Relu", net("MatMul", "x", normal(8, 4))))
    found = try_network(path, tmp_path / "artifact", Limits(300, 8 << 30), quick=True, times=False)
    assert found.pop("cpu_seconds") > 0
    assert found == {"compiles": True, "layers": {"own": 1}, "agrees": True}
    refused = {"compiles": False, "fault": "dimension 1 is symbolic"}
    rows = table.table(
        {"networks": {"a.b.dynamo": found | {"exported": True}, "a.c.dynamo": refused | {"exported": True}}}
    )
    assert "| a | dynamo | 2 | 1 | 1 | 1 | 0 | 0 | 0 |" in rows and "- `a.c.dynamo`: dimension 1 is" in rows


def test_a_command_that_takes_too_long_or_too_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CLI", [sys.executable, "-c"])
    waits = run_command(("import time; time.sleep(60)",), Limits(0.5, 1 << 30))
    assert waits.fault == "takes over 0.5 s" and waits.seconds < 30
    large = run_command(("x = bytearray(1 << 30)",), Limits(30, 1 << 29))
    assert large.code == 1 and large.fault == "crashes (1): MemoryError"


def test_an_exporter_that_dies_is_replaced(tmp_path: Path) -> None:
    network = next(coverage.networks(["*.resnet18.dynamo"]))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nread line\necho null\nread line\nexit 3\n", "utf-8")
    python.chmod(0o755)
    exporter = coverage.Exporter(str(python), tmp_path, 60)
    answers = [exporter.export(network) for _ in range(3)]
    exporter.close()
    assert answers == [None, "the exporter ended with code 3", None]
