"""Operators that TVM's importer lowers wrongly, or not at all, and that our converters do, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx.helper import make_node as node
from stitch.region_case import Case, assert_right, run

IDS = {"ids": "int64"}
CASES = {
    "cumsum": Case([node("CumSum", ["x", "axis"], ["y"])], {"x": (-1, 9)}, ["y"], {"axis": np.array(1)}),
    "cumsum from behind": Case(
        [node("CumSum", ["x", "axis"], ["y"], reverse=1, exclusive=1)], {"x": (3, 5, -1)}, ["y"], {"axis": np.array(-2)}
    ),
    "cumsum of integers": Case(
        [node("CumSum", ["ids", "axis"], ["y"])], {"ids": (-1, 9)}, ["y"], {"axis": np.array(1)}, IDS
    ),
    "flags expanded": Case(
        [node("Expand", ["keep", "to"], ["y"])],
        {"keep": (-1, 1, 7)},
        ["y"],
        {"to": np.array([2, 1, 5, 1])},
        {"keep": "bool"},
    ),
    "a transpose of k times the batch": Case(
        [
            node("Reshape", ["x", "joined"], ["j"]),
            node("Transpose", ["j"], ["t"], perm=[0, 2, 1]),
            node("Reshape", ["t", "split"], ["y"]),
        ],
        {"x": (-1, 4, 3, 5)},
        ["y"],
        {"joined": np.array([-1, 3, 5]), "split": np.array([-1, 4, 5, 3])},
    ),
    "a transpose of k times the batch as an input": Case(
        [node("Transpose", ["x"], ["y"], perm=[0, 2, 1])], {"x": (-4, 3, 5)}, ["y"]
    ),
    "views of different parts that look alike": Case(
        [
            node("Split", ["x"], ["q", "k", "v"], axis=2, num_outputs=3),
            node("Reshape", ["q", "heads"], ["qh"]),
            node("Reshape", ["k", "heads"], ["kh"]),
            node("Transpose", ["qh"], ["a"], perm=[0, 2, 1, 3]),
            node("Transpose", ["kh"], ["b"], perm=[0, 2, 3, 1]),
        ],
        {"x": (-1, 3, 24)},
        ["a", "b", "v"],
        {"heads": np.array([0, 0, 2, 4])},
    ),
    "constant places of a tensor that ends with the batch": Case(
        [node("GatherND", ["x", "at"], ["y"])], {"x": (5, 6, -1)}, ["y"], {"at": np.array([[0, 1], [-1, 5], [4, -6]])}
    ),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_like_onnx_runtime(case: Case, batch: int) -> None:
    assert_right(case, batch, max_batch=4)


class Computed(Case):
    """Indices that the model's inputs decide, most of them inside of an axis of 7."""

    def draw(self, batch: int = 1, seed: int = 0) -> dict[str, NDArray[Any]]:
        ids = np.random.default_rng(seed).integers(-7, 7, [-d * batch if d < 0 else d for d in self.inputs["ids"]])
        return super().draw(batch, seed) | {"ids": ids}


GATHERS = {
    "elements": Computed(
        [node("GatherElements", ["x", "ids"], ["y"], axis=1)], {"x": (-1, 7, 4), "ids": (-1, 3, 4)}, ["y"], {}, IDS
    ),
    "elements of a constant": Computed(
        [node("GatherElements", ["table", "ids"], ["y"], axis=-1)],
        {"ids": (2, 5)},
        ["y"],
        {"table": np.arange(14, dtype=np.float32).reshape(2, 7)},
        IDS,
    ),
    "slices": Computed([node("GatherND", ["x", "ids"], ["y"])], {"x": (7, 8, 3), "ids": (-1, 2, 2)}, ["y"], {}, IDS),
    "slices of each row": Computed(
        [node("GatherND", ["x", "ids"], ["y"], batch_dims=1)], {"x": (-1, 7, 3), "ids": (-1, 2, 1)}, ["y"], {}, IDS
    ),
}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("case", GATHERS.values(), ids=GATHERS)
def test_computed_indices(case: Case, batch: int) -> None:
    assert_right(case, batch, max_batch=4)


@pytest.mark.parametrize("far", [-(1 << 40), -8, 7, 1 << 62])
@pytest.mark.parametrize("case", GATHERS.values(), ids=GATHERS)
def test_no_index_leaves_its_axis(case: Case, far: int) -> None:
    region, given = case.region(), case.draw()
    inside = given | {"ids": np.full_like(given["ids"], 6 if far > 0 else 0)}
    outside = given | {"ids": np.full_like(given["ids"], far)}
    if case is GATHERS["slices"] and far > 0:
        inside["ids"][..., 1] = min(far, 7)
    np.testing.assert_array_equal(run(case, region, outside)[0], run(case, region, inside)[0])


def scattered(op: str, ids: tuple[int, ...], updates: tuple[int, ...], **attributes: Any) -> Computed:
    nodes = [node(op, ["x", "ids", "updates"], ["y"], **attributes)]
    return Computed(nodes, {"x": (7, 8), "ids": ids, "updates": updates}, ["y"], {}, IDS)


SCATTERS = {
    "elements": scattered("ScatterElements", (7, 3), (7, 3), axis=0, reduction="add"),
    "slices": scattered("ScatterND", (3, 1), (3, 8), reduction="add"),
    "points": scattered("ScatterND", (3, 2), (3,), reduction="add"),
}


@pytest.mark.parametrize("case", SCATTERS.values(), ids=SCATTERS)
def test_scatters_write_inside(case: Case) -> None:
    region = assert_right(case)
    given = case.draw()
    for far in (-(1 << 40), 1 << 62):
        given["ids"][...] = far
        (found,) = run(case, region, given)
        place = np.where(given["ids"] < 0, 0, 6 if given["ids"].shape[-1] != 2 else [6, 7])
        np.testing.assert_allclose(found, case.expected(given | {"ids": place})[0], rtol=1e-5, atol=1e-5)
