"""Sums of one-hot vectors and of concatenated tensors become one layer, equal to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_nets import Arrays
from row_models import ROWS, drawn, ids, operators, random

ONES: Arrays = {"values": np.array([0, 1], np.float32), "one": np.array([1])}
COUNTS = [("OneHot", "a d5 values", "h", {}), ("ReduceSum", "h one", "s", {"keepdims": 0})]
MORE = [("OneHot", "b d19 values", "g", {}), ("ReduceMean", "g", "t", {"axes": [1], "keepdims": 0})]


def test_one_hot_sum_counts(tmp_path: Path) -> None:
    constants = ONES | {"d5": np.array(5)}
    assert operators(tmp_path, [*COUNTS, ("Identity", "s", "y", {})], {"a": ids(9, 5)}, constants) == ["one_hot_sum"]


@pytest.mark.parametrize("product", [False, True])
def test_one_hot_sums_side_by_side(tmp_path: Path, product: bool) -> None:
    joined = ("Concat", "s t", "j" if product else "y", {"axis": 1})
    nodes = [*COUNTS, *MORE, joined, *([("Gemm", "j w c", "y", {"transB": 1})] if product else [])]
    constants = ONES | {"d5": np.array(5), "d19": np.array([19]), "w": drawn(21, 24), "c": drawn(21)}
    assert operators(tmp_path, nodes, {"a": ids(9, 5), "b": ids(4, 19)}, constants) == ["one_hot_sum"]


def test_ids_at_the_ends_of_their_type_count_nothing(tmp_path: Path) -> None:
    limits = np.iinfo(np.int64)
    far = np.array([[limits.min, limits.max, -1, 2**31, 2**40, 4, 5, -5, -6]] * ROWS)
    constants = ONES | {"d5": np.array(5), "w": drawn(5, 3)}
    nodes = [*COUNTS, ("MatMul", "s w", "y", {})]
    assert operators(tmp_path, nodes, {"a": far}, constants) == ["one_hot_sum"]


def test_one_hot_along_another_axis_keeps_its_type(tmp_path: Path) -> None:
    constants: Arrays = {"d5": np.array(5), "values": np.array([0.5, 2], np.float32)}
    found = operators(tmp_path, [("OneHot", "a d5 values", "y", {"axis": 1})], {"a": ids(3, 5)}, constants)
    assert found == ["generic"]


def test_rows_that_nothing_sums_are_bags_of_one(tmp_path: Path) -> None:
    feeds = {"a": random.integers(0, 20, (ROWS, 3)), "b": random.integers(0, 20, (ROWS, 3))}
    nodes = [("Gather", "t a", "r", {}), ("Gather", "u b", "q", {}), ("Sub", "r q", "y", {})]
    found = operators(tmp_path, nodes, feeds, {"t": drawn(20, 5), "u": drawn(30, 5)})
    assert found == ["embedding_bag", "stitched"]


@pytest.mark.parametrize("ids", [(ROWS,), (ROWS, 3)])
def test_blocks_of_rows_are_bags_of_one(tmp_path: Path, ids: tuple[int, ...]) -> None:
    feeds = {"a": random.integers(0, 20, ids)}
    assert operators(tmp_path, [("Gather", "t a", "y", {})], feeds, {"t": drawn(20, 4, 9)}) == ["embedding_bag"]


@pytest.mark.parametrize(
    ("shapes", "keep"),
    [([(1, 16), (1, 16), (3, 16)], 0), ([(2, 53), (1, 53)], 1), ([(5, 4), (30, 4)], 0), ([(37,), (1,), (130,)], 0)],
    ids=["rows", "odd", "narrow", "scalars"],
)
def test_concat_sum_copies_nothing(tmp_path: Path, shapes: list[tuple[int, ...]], keep: int) -> None:
    feeds = {f"x{i}": drawn(ROWS, *shape) for i, shape in enumerate(shapes)}
    joined = ("Concat", " ".join(feeds), "j", {"axis": 1})
    total = (
        ("ReduceSum", "j one", "y", {"keepdims": 1}) if keep else ("ReduceMean", "j", "y", {"axes": [1], "keepdims": 0})
    )
    nodes = [joined, total]
    assert operators(tmp_path, nodes, feeds, ONES) == ["concat_sum"]
