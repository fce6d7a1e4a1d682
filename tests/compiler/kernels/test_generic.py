"""Schedules of generated code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from onnx_nets import Net

from veltair.compiler.graph.parameters.generic import GenericParameters
from veltair.compiler.kernels.generic.generic import schedule
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower


def nodes_of(function: Any) -> list[Any]:
    found: list[Any] = list(function.params)
    tvm_ffi.structural_walk(function.body, (tvm_ffi.Object, found.append))
    return found


def test_a_schedule_shares_no_node_with_what_it_is_of(tmp_path: Path) -> None:
    """Another thread may compile one while the other is scheduled: TVM changes nodes in place."""
    net = Net(x=["n", 4])
    path = net.save(tmp_path / "net.onnx", net("Mod", "x", np.array([2, 3, 5, 7], np.float32), fmod=1))
    [layer] = [layer for layer in lower(load_model(path, 2), "fp32").layers if layer.op == "generic"]
    function = layer.parameters_as(GenericParameters).tir
    before = nodes_of(function)
    after = nodes_of(schedule(function))
    assert before and after
    assert not [node for node in after if any(node.same_as(other) for other in before)]
