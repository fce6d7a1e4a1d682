"""Records of another CPU, another TVM or another shape: a search begins with their best points."""

from __future__ import annotations

from pathlib import Path

import pytest
from copy_search import QUIET, WIDE, Copy, layer, setting, shipping, store, written

from veltair.compiler.graph.layer_spec import Point
from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning.search import search
from veltair.compiler.tuning.search_plan import TVM


@pytest.mark.parametrize(("cpu", "tvm"), [("another", TVM), ("a cpu", "0.20")])
def test_foreign_records_say_where_to_look_and_not_how_fast_it_is(
    cpu: str, tvm: str, tmp_path: Path, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    written(shipping(tmp_path), layer(), WIDE, cpu, tvm)
    space = Copy(WIDE)
    found = search([layer()], store(tmp_path), meter, setting(space), None, QUIET)[layer().workload]
    assert space.built == WIDE[:2:-1]  # the best four, the best first
    assert [c.point for c in found] == WIDE[:2:-1]
    assert [r.run_ns for r in store(tmp_path).own(layer().workload)] == [c.run_ns for c in found]
    assert caplog.messages == [
        f"the tuning records of 1 of 1 workloads are of {cpu} with TVM {tvm}, this is a cpu with TVM {TVM}: "
        "their best points are measured here again"
    ]

    again = search([layer()], store(tmp_path), meter, setting(space), None, QUIET)
    assert (again[layer().workload], len(space.built), len(caplog.messages)) == (found, 4, 1)


def test_with_no_trials_the_best_foreign_point_alone_is_measured(tmp_path: Path, meter: Meter) -> None:
    written(store(tmp_path), layer(), WIDE, cpu="another")
    space = Copy(WIDE)
    (candidate,) = search([layer()], store(tmp_path), meter, setting(space), 0, QUIET)[layer().workload]
    assert [candidate.point] == space.built == WIDE[-1:]
    assert candidate.run_ns != (1_000_000 - 6,)


def test_where_the_only_foreign_point_fails_the_default_is_taken(
    tmp_path: Path, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    points: list[Point] = [{"tile": 1}, {"tile": 2, "call": "abort"}, {"tile": 4}]
    written(store(tmp_path), layer(), points[1:2], cpu="another")
    for _ in range(2):  # the second time, the default has a record
        found = search([layer()], store(tmp_path), meter, setting(Copy(points)), 0, QUIET)[layer().workload]
        assert [c.point for c in found] == points[:1]
    (warning,) = (text for text in caplog.messages if "default" in text)
    assert warning.startswith("layer l (copy float32[64,8]/0") and "SIGABRT" in warning


def test_candidates_tell_how_the_search_came_by_them(tmp_path: Path, meter: Meter) -> None:
    known = written(store(tmp_path), layer(rows=48), WIDE)
    found = search([layer(rows=64)], known, meter, setting(Copy(WIDE)), 5, QUIET)[layer(rows=64).workload]
    here = "best of [48,8] to [48,8]"
    assert [c.origin for c in found] == [here, here, here, "default", "searched"]
    again = search([layer(rows=64)], store(tmp_path), meter, setting(Copy(WIDE)), 5, QUIET)[layer(rows=64).workload]
    assert {c.origin for c in again} == {"record"}
    written(shipping(tmp_path), layer(), WIDE[:1])
    written(store(tmp_path), layer(rows=32), WIDE[:1], cpu="another")
    found = search([layer(), layer(rows=32)], store(tmp_path), meter, setting(Copy(WIDE)), 0, QUIET)
    assert [c.origin for group in found.values() for c in group] == ["shipped record", "best of another CPU or TVM"]


def test_more_trials_than_foreign_records_go_on(tmp_path: Path, meter: Meter) -> None:
    written(shipping(tmp_path), layer(), WIDE[4:6], cpu="another")
    found = search([layer()], store(tmp_path), meter, setting(Copy(WIDE)), 9, QUIET)[layer().workload]
    assert [c.point for c in found] == [WIDE[5], WIDE[4], *WIDE[:4], WIDE[6]]


def test_foreign_records_beside_those_of_this_cpu_are_left_alone(
    tmp_path: Path, meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    written(written(shipping(tmp_path), layer(), WIDE, cpu="another"), layer(), WIDE[:2])
    space = Copy(WIDE)
    found = search([layer()], store(tmp_path), meter, setting(space), None, QUIET)[layer().workload]
    assert [(c.point, c.run_ns) for c in found] == [(WIDE[0], (1_000_000,)), (WIDE[1], (999_999,))]
    assert (space.built, caplog.messages) == ([], [])


def test_a_new_shape_begins_with_the_best_points_of_the_nearest(tmp_path: Path, meter: Meter) -> None:
    known = written(written(store(tmp_path), layer(rows=48), WIDE), layer(rows=4096), WIDE[::-1])
    alone = Copy(WIDE)
    found = search([layer(rows=64)], known, meter, setting(alone), 0, QUIET)
    assert alone.built == [WIDE[6], WIDE[5], WIDE[4], WIDE[0]]  # and the default
    assert [c.point for c in found[layer(rows=64).workload]] == alone.built
    assert search([layer(rows=64)], store(tmp_path), meter, setting(alone), 0, QUIET) == found
    more = Copy(WIDE)
    search([layer(rows=32)], store(tmp_path), meter, setting(more), 5, QUIET)
    assert more.built[:4] == [WIDE[6], WIDE[5], WIDE[4], WIDE[0]]
    assert len(more.built) == 5
