"""Operators one behind the other, in TVM's schedules: what they give, and that a compile of many ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from onnx.helper import make_node as node
from stitch.region_case import Case, run

Array = NDArray[Any]
DOUBLE, SINGLE = TensorProto.DOUBLE, TensorProto.FLOAT  # our own kernels compute no doubles
MANY = 14


def chain(steps: list[onnx.NodeProto], last: str) -> Case:
    nodes = [node("Cast", ["x"], ["v0"], to=DOUBLE), *steps, node("Cast", [last], ["y"], to=SINGLE)]
    return Case(nodes, {"x": (-1, 8)}, ["y"], {"half": np.array(0.5)})


def agrees(case: Case, function: Callable[[Array], Array] | None = None) -> int:
    """Whether it gives what ONNX Runtime gives, or the function of its input; the number of layers."""
    region, given = case.region(3), case.draw(3)
    [found] = run(case, region, given, 3)
    wanted = function(given["x"].astype(np.float64)) if function else case.expected(given, 3)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    return len(region.layers)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {  # of which ONNX Runtime computes no doubles
    "Elu": lambda x: np.where(x > 0, x, np.exp(x) - 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "LeakyRelu": lambda x: np.where(x > 0, x, 0.01 * x),
    "Sign": np.sign,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
}


@pytest.mark.parametrize("operator", ACTIVATIONS)
def test_each_reads_the_one_before_several_times(operator: str) -> None:
    steps = [node(operator, [f"v{i}"], [f"v{i + 1}"]) for i in range(MANY)]
    whole = functools.reduce(lambda inner, _: lambda x: ACTIVATIONS[operator](inner(x)), range(MANY), lambda x: x)
    assert 1 < agrees(chain(steps, f"v{MANY}"), whole) <= 3 * MANY


def test_several_operators_read_the_one_before() -> None:
    steps = []
    for i in range(MANY):
        steps += [node("Sigmoid", [f"v{i}"], [f"s{i}"]), node("Less", [f"s{i}", "half"], [f"l{i}"])]
        steps += [node("Where", [f"l{i}", f"v{i}", f"s{i}"], [f"v{i + 1}"])]
    assert 1 < agrees(chain(steps, f"v{MANY}")) <= 3 * MANY


def test_parts_that_are_cut_off_and_joined() -> None:
    steps = []
    for i in range(MANY):
        steps += [node("Split", [f"v{i}"], [f"a{i}", f"b{i}"], num_outputs=2, axis=1)]
        steps += [node("Mul", [f"a{i}", f"b{i}"], [f"m{i}"]), node("Concat", [f"m{i}", f"a{i}"], [f"v{i + 1}"], axis=1)]
    assert agrees(chain(steps, f"v{MANY}")) > 1


def test_what_reads_the_one_before_once_is_one_layer() -> None:
    steps = [node(("Add", "Mul")[i % 2], [f"v{i}", "half"], [f"v{i + 1}"]) for i in range(60)]
    assert agrees(chain(steps, "v60")) == 1
