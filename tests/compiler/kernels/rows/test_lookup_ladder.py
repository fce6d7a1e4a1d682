"""Points of Ember's ladder: each gives the same, all are searched, and the default follows where the tables lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from row_models import ROWS, drawn
from run_kernels import compile_ahead, run_and_compare

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, LayerSpec, Point
from veltair.compiler.graph.parameters.recommendation import (
    EmbeddingBagParameters,
    LookupFamily,
    LookupParameters,
    Reduction,
)
from veltair.compiler.kernels.rows import lookup_ladder
from veltair.compiler.kernels.rows.lookup_ladder import ladder_points, order_distances
from veltair.compiler.shared_library import compile_function
from veltair.machine.isa import cpu_features, tvm_target

IDS, WIDTH, TABLE_BYTES = 5, 48, 40 * 48 * 4
SMALL = {"L2": 1 << 12, "L3": 1 << 20}  # where the tables below are too large for the L2, as are the results
random = np.random.default_rng(11)


def bag_spec(width: int = WIDTH, max_batch: int = 64) -> LayerSpec:
    ids, y = Activation("ids", "int64", (-1, IDS)), Activation("y", "float32", (-1, width))
    tables = {f"table{i}": drawn(rows, width) for i, rows in enumerate((40, 30))}
    parameters = EmbeddingBagParameters(reduce=Reduction.MAX)
    return LayerSpec("b", "embedding_bag", (ids,) * 2, (y,) * 2, tables, 1, max_batch, parameters)


def ragged_spec(reduce: Reduction) -> LayerSpec:
    ids, lengths = Activation("ids", "int64", (-1, IDS)), Activation("lengths", "int64", (-1,))
    y, tables = Activation("y", "float32", (-1, WIDTH)), {"table0": drawn(40, WIDTH)}
    parameters = LookupParameters(family=LookupFamily.RAGGED_BAG, dim=WIDTH, reduce=reduce, padding=3)
    return LayerSpec("l", "lookups", (ids, lengths), (y,), tables, 1, 64, parameters)


def some(points: list[Point]) -> list[Point]:
    return [point for point in points if point["bags"] == 4 and point["ahead"] in (0, 8)]


@pytest.mark.parametrize(("case", "mcpu"), [("bags", ""), ("sum", ""), ("mean", "haswell"), ("max", "")])
def test_every_point_gives_the_same(case: str, mcpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_ladder, "cache_bytes", lambda: SMALL)
    ids = random.integers(0, 30, (ROWS, IDS))
    ids[1], ids[:, 2] = 3, 3  # a bag of padding alone
    values = [ids, ids] if case == "bags" else [ids, np.array([0, 5, 3, 1, 9, -1, 2])]
    spec = bag_spec() if case == "bags" else ragged_spec(Reduction(case))
    points = some(SPACES[spec.op].points(spec, cpu_features()))
    assert {(point.get("level"), point.get("stores")) for point in points} == {
        (None, None),
        (2, None),
        (None, "streamed"),
    }
    for point in compile_ahead(spec, points, mcpu):
        error, _ = run_and_compare(spec, point, values, ROWS, mcpu)
        assert error < 1e-5, point


@pytest.mark.parametrize(
    ("caches", "first"),
    [
        ({"L2": 2 * TABLE_BYTES, "L3": 1 << 30}, 0),
        ({"L2": TABLE_BYTES, "L3": 2 * TABLE_BYTES}, 8),
        ({"L2": 1024, "L3": TABLE_BYTES}, 16),
        ({"L2": 2 * TABLE_BYTES}, 0),
        ({}, 16),
    ],
)
def test_the_default_follows_the_tables(caches: dict[str, int], first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_ladder, "cache_bytes", lambda: caches)
    spec = bag_spec()
    assert order_distances(spec)[0] == first
    assert SPACES["embedding_bag"].points(spec, cpu_features())[0] == {"ahead": first, "bags": 16, "along": "tables"}


def test_points_of_records_before_the_ladder_are_still_points() -> None:
    bags = SPACES["embedding_bag"].points(bag_spec(), cpu_features())
    for old in [
        {"ahead": ahead, "bags": size, "along": along}
        for size in (16, 4, 1, 64)
        for along in ("tables", "bags")
        for ahead in (16, 8, 32, 4, 0)
        if ahead < size * IDS
    ]:
        assert old in bags
    ragged = SPACES["lookups"].points(ragged_spec(Reduction.SUM), cpu_features())
    assert all({"ahead": a, "bags": b} in ragged for a in (16, 0, 8, 32) for b in (16, 4, 1, 64))


@pytest.mark.parametrize(("width", "batch", "streamed"), [(48, 64, True), (40, 64, False), (48, 4, False)])
def test_what_is_small_or_no_whole_lines_is_not_streamed(width: int, batch: int, streamed: bool) -> None:
    found: list[Any] = [point.get("stores") for point in ladder_points(bag_spec(width, batch), [{"ahead": 0}], SMALL)]
    assert ("streamed" in found) == streamed
    unknown = ladder_points(bag_spec(width, batch), [{"ahead": 0}], {})
    assert all("stores" not in point for point in unknown)


def test_streaming_stores_are_in_the_code() -> None:
    spec = bag_spec()
    for point, found in (({"ahead": 8, "bags": 4, "stores": "streamed"}, True), ({"ahead": 8, "bags": 4}, False)):
        function = SPACES["embedding_bag"].build(spec, point, cpu_features()).function
        assert ("movnt" in compile_function(function, "main", tvm_target()).mod.inspect_source("asm")) == found
