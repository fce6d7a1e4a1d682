"""NaN, infinities, zeros of both signs and subnormals give what they give in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_node as node
from stitch.region_case import Case, run

NUMBERS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1, -1, 0.5, 2, 3.4e38], np.float32)
COUNT = len(NUMBERS)
COMPARISONS = ("Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal")
OPPOSITES = (("Less", "GreaterOrEqual"), ("LessOrEqual", "Greater"))
INTEGER = 6  # of TensorProto's types
CONSTANTS = {"one": np.float32(1), "axes": np.array([1])}


def cast(name: str, to: int = INTEGER) -> list[object]:
    return [node("Cast", [name], [f"{name}.{to}"], to=to)]


def of_pairs() -> Case:
    """All pairs of the numbers through comparisons, what joins them, and choices."""
    nodes, outputs = [], []
    for name in COMPARISONS:
        for operand in ("one", "b", "a"):
            stem = f"{name}.{operand}"
            nodes += [node(name, ["a", operand], [stem]), node("Not", [stem], [f"{stem}.not"])]
            nodes += [*cast(f"{stem}.not"), *cast(f"{stem}.not", 1), *cast(stem)]
            outputs += [f"{stem}.not.{INTEGER}", f"{stem}.not.1", f"{stem}.{INTEGER}"]
        nodes.append(node("Where", [f"{name}.one.not", "a", "b"], [f"{name}.where"]))
        outputs.append(f"{name}.where")
    for pair in OPPOSITES:
        for join in ("And", "Or", "Xor"):
            stem = f"{join}.{pair[0]}"
            nodes += [node(join, [f"{side}.one" for side in pair], [stem]), *cast(stem)]
            nodes += [node("Not", [stem], [f"{stem}.not"]), *cast(f"{stem}.not")]
            outputs += [f"{stem}.{INTEGER}", f"{stem}.not.{INTEGER}"]
    for name in ("Min", "Max", "Sub"):
        for i, operands in enumerate((["a", "b"], ["one", "a"], ["a", "one"], ["a", "a"])):
            nodes.append(node(name, operands, [f"{name}.{i}"]))
            outputs.append(f"{name}.{i}")
    for name in ("Sign", "Elu", "Selu", "ThresholdedRelu", "Relu"):
        nodes.append(node(name, ["a"], [name]))
        outputs.append(name)
    for i, bounds in enumerate(([], ["one"], ["", "one"])):  # what is left out is the greatest float
        nodes.append(node("Clip", ["a", *bounds], [f"Clip.{i}"]))
        outputs.append(f"Clip.{i}")
    used = {"one": CONSTANTS["one"]}
    return Case(nodes, {"a": (-1, COUNT), "b": (-1, COUNT)}, outputs, used)


def test_pairs() -> None:
    case = of_pairs()
    given = {"a": np.repeat(NUMBERS, COUNT).reshape(COUNT, COUNT), "b": np.tile(NUMBERS, (COUNT, 1))}
    with np.errstate(all="ignore"):
        found = run(case, case.region(COUNT), given, COUNT)
    for name, ours, expected in zip(case.outputs, found, case.expected(given, COUNT), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_choices_of_doubles(operator: str) -> None:
    double, single = TensorProto.DOUBLE, TensorProto.FLOAT
    nodes = [*cast("a", double), *cast("b", double), node(operator, [f"a.{double}", f"b.{double}"], ["c"])]
    nodes += cast("c", single)
    case = Case(nodes, {"a": (-1, COUNT), "b": (-1, COUNT)}, [f"c.{single}"], {})
    given = {"a": np.repeat(NUMBERS, COUNT).reshape(COUNT, COUNT), "b": np.tile(NUMBERS, (COUNT, 1))}
    [found] = run(case, case.region(COUNT), given, COUNT)
    np.testing.assert_array_equal(found, case.expected(given, COUNT)[0])


def test_many_choices_one_behind_the_other() -> None:
    """TVM makes one expression of them, which is to grow with their number, not three times as large by each."""
    double, single = TensorProto.DOUBLE, TensorProto.FLOAT
    nodes, name = [*cast("a", double), *cast("row", double)], f"a.{double}"
    for i in range(30):
        operands = [name, (f"row.{double}", "bounds", "half")[i % 3]]
        name = f"c{i}"
        nodes.append(node(("Max", "Min")[i % 2], operands[:: (1, -1)[i // 6 % 2]], [name]))
    constants = {"bounds": np.linspace(-2, 2, COUNT), "half": np.array([[0.5]])}
    case = Case([*nodes, *cast(name, single)], {"a": (-1, COUNT), "row": (1, COUNT)}, [f"{name}.{single}"], constants)
    given = {"a": np.repeat(NUMBERS, COUNT).reshape(COUNT, COUNT), "row": NUMBERS[None, ::-1].copy()}
    [found] = run(case, case.region(COUNT), given, COUNT)
    np.testing.assert_array_equal(found, case.expected(given, COUNT)[0])


@pytest.mark.parametrize(("comparison", "operand", "expected"), [("Less", "one", 5), ("Equal", "a", 1)])
def test_counts_of_what_is_not_so(comparison: str, operand: str, expected: int) -> None:
    nodes = [node(comparison, ["a", operand], ["c"]), node("Not", ["c"], ["n"]), *cast("n")]
    nodes.append(node("ReduceSum", [f"n.{INTEGER}", "axes"], ["count"], keepdims=0))
    case = Case(
        nodes, {"a": (-1, COUNT)}, ["count"], {name: CONSTANTS[name] for name in {operand, "axes"} & {*CONSTANTS}}
    )
    given = {"a": np.stack([NUMBERS, np.full(COUNT, np.nan, np.float32)])}
    (count,) = run(case, case.region(2), given, 2)
    assert count.tolist() == [expected, COUNT] == case.expected(given, 2)[0].tolist()


@pytest.mark.parametrize("width", [5, 40])
def test_reductions(width: int) -> None:
    """NaN and infinities at both ends and in the middle of a row, and rows of nothing else."""
    rows = np.random.default_rng(0).standard_normal((3 * COUNT, width)).astype(np.float32)
    for place, start in ((0, 0), (width // 2, COUNT), (width - 1, 2 * COUNT)):
        rows[start : start + COUNT, place] = NUMBERS
    rows = np.concatenate([rows, *(np.full((1, width), value, np.float32) for value in NUMBERS[:3])])
    nodes = [node("Softmax", ["r"], ["Softmax"], axis=-1), node("ReduceSum", ["r", "axes"], ["ReduceSum"])]
    outputs = ["Softmax", "ReduceSum"]
    for name in ("ArgMax", "ArgMin"):
        for last in (0, 1):
            outputs.append(f"{name}.{last}")
            nodes.append(node(name, ["r"], outputs[-1:], axis=1, keepdims=last, select_last_index=last))
    case = Case(nodes, {"r": (-1, width)}, outputs, {"axes": CONSTANTS["axes"]})
    with np.errstate(all="ignore"):
        found = run(case, case.region(len(rows)), {"r": rows}, len(rows))
    for name, ours, expected in zip(outputs, found, case.expected({"r": rows}, len(rows)), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=2e-5, atol=2e-5, err_msg=name)


def test_infinities_in_sums_of_powers_and_the_place_of_the_greatest() -> None:
    rows = np.array([[np.inf, 1, 2], [-np.inf, 1, 2], [np.inf, -np.inf, 0], [np.inf] * 3, [-np.inf] * 3], np.float32)
    nodes = [node("ReduceLogSumExp", ["r", "axes"], ["total"], keepdims=0), node("Hardmax", ["r"], ["place"], axis=1)]
    case = Case(nodes, {"r": (-1, 3)}, ["total", "place"], {"axes": CONSTANTS["axes"]})
    with np.errstate(all="ignore"):
        found = run(case, case.region(len(rows)), {"r": rows}, len(rows))
    for ours, expected in zip(found, case.expected({"r": rows}, len(rows)), strict=True):
        np.testing.assert_array_equal(ours, expected)
