from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.progress import Progress, TaskID
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning.search import search
from veltair.compiler.tuning.search_plan import TVM, find_neighbours, propose_points
from veltair.compiler.tuning.setting import Setting
from veltair.errors import VeltairError
from veltair.machine.isa import cpu_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord

GRID: list[Point] = [{"rows": r, "unroll": u} for r in (1, 2, 4, 8) for u in (1, 4, 16)]


def test_neighbours_differ_by_one_step_in_one_coordinate() -> None:
    at = GRID.index({"rows": 2, "unroll": 4})
    assert [GRID[i] for i in find_neighbours(GRID, at)] == [
        {"rows": 1, "unroll": 4},
        {"rows": 2, "unroll": 1},
        {"rows": 2, "unroll": 16},
        {"rows": 4, "unroll": 4},
    ]
    assert [GRID[i] for i in find_neighbours(GRID, 0)] == [{"rows": 1, "unroll": 4}, {"rows": 2, "unroll": 1}]


def test_words_are_neighbours_in_their_order() -> None:
    points: list[Point] = [{"mode": m, "rows": 1} for m in ("flat", "row", "tall")]
    assert find_neighbours(points, 0) == [1]
    assert find_neighbours(points, 1) == [0, 2]


def test_a_small_space_is_measured_whole_and_in_order() -> None:
    assert propose_points(GRID, {}, 12, "w", chunk=5) == [0, 1, 2, 3, 4]
    assert propose_points(GRID, dict.fromkeys(range(10), 9), 12, "w", chunk=5) == [10, 11]
    assert propose_points(GRID, dict.fromkeys(range(12), 9), 12, "w") == []


def test_a_large_space_begins_with_its_default_and_a_sample() -> None:
    first = propose_points(GRID, {}, 6, "w")
    assert first[0] == 0
    assert len(first) == 4  # half of the trials beside the default
    assert first == propose_points(GRID, {}, 6, "w")


def test_then_come_the_neighbours_of_the_best() -> None:
    sample = propose_points(GRID, {}, 8, "w")
    best = sample[2]
    times = {i: 10 if i == best else 100 + i for i in sample}
    wanted = [i for i in find_neighbours(GRID, best) if i not in times]
    assert wanted
    assert propose_points(GRID, times, 8, "w")[: len(wanted)] == wanted


def test_what_looks_promising_comes_first() -> None:
    assert propose_points(GRID, {}, 3, "w", first=(7, 5)) == [7, 5, 0]
    assert propose_points(GRID, {}, 12, "w", chunk=5, first=(7, 5)) == [7, 5, 0, 1, 2]
    sample = propose_points(GRID, {}, 8, "w", first=(7, 5))
    assert sample[:3] == [7, 5, 0]
    assert len(sample) == 5  # with them, no more than without
    assert propose_points(GRID, {7: 1}, 8, "w", first=(7, 5))[:2] == [5, 0]


@given(st.integers(1, 30), st.integers(0, 40), st.integers(1, 8), st.integers(0, 3), st.randoms())
def test_as_many_as_asked_for_none_twice(length: int, trials: int, chunk: int, hints: int, random: Any) -> None:
    points: list[Point] = [{"a": i % 5, "b": i // 5} for i in range(length)]
    first = random.sample(range(length), min(hints, length))
    times: dict[int, int] = {}
    while chosen := propose_points(points, times, trials, "w", chunk, first):
        assert len(chosen) <= chunk
        assert not set(chosen) & set(times)
        for i in chosen:
            times[i] = random.randint(1, 100)
    assert len(times) == min(trials, length)
    assert len(times) <= len(first) or 0 in times
    assert set(first[:trials]) <= set(times)


# Searches for real: rows x 8 floats are copied, some tiles of rows at a time.


def layer(name: str = "l", rows: int = 64) -> LayerSpec:
    x = Activation(f"{name}.x", "float32", (rows, 8))
    return LayerSpec(name, "copy", (x,), (Activation(f"{name}.y", "float32", (rows, 8)),), {}, 0)


@dataclass
class Copy:
    """Points with a call in them do that before they copy."""

    space: Sequence[Point]
    built: list[Point] = field(default_factory=list)

    def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
        return list(self.space)

    def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
        self.built.append(point)

        def body(x: Any, y: Any) -> None:
            if "call" in point:
                T.evaluate(T.call_extern("int32", str(point["call"])))
            with T.parallel(0, x.shape[0]) as row, T.serial(0, 8) as i:
                T.buffer_store(y, x[row, i], [row, i])

        function = build_prim_func([*spec.inputs, *spec.outputs], body)
        return Kernel(function, (), block_size=32 * int(point["tile"]), parallelism=64 // int(point["tile"]))


TILES: list[Point] = [{"tile": t} for t in (1, 2, 4)]


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    with Meter(usable_machine().cores) as meter:
        yield meter


def setting(space: Copy) -> Setting:
    return Setting(tvm_target(), cpu_features(), "a cpu", "fp32", 1, {}, {"copy": space})


def store(folder: Path) -> RecordStore:
    return RecordStore(cpu_features(), user=folder / "user", shipped=folder / "shipped")


QUIET = Progress(disable=True)


def test_every_candidate_is_measured_and_recorded_once(tmp_path: Path, meter: Meter) -> None:
    space, specs = Copy(TILES), [layer("a"), layer("b"), layer("c", rows=32)]
    found = search(specs, store(tmp_path), meter, setting(space), 10, QUIET)
    assert list(found) == [specs[0].workload, specs[2].workload]  # a and b are the same work
    assert [c.point for c in found[specs[0].workload]] == TILES
    assert all(len(c.run_ns) == len(meter.cores) for c in found[specs[0].workload])
    assert [(c.block_size, c.parallelism) for c in found[specs[0].workload]] == [(32, 64), (64, 32), (128, 16)]
    recorded = store(tmp_path).own(specs[0].workload)
    assert [r.point for r in recorded] == TILES
    assert [r.run_ns for r in recorded] == [c.run_ns for c in found[specs[0].workload]]
    assert len(space.built) == 6

    again = search(specs, store(tmp_path), meter, setting(space), 10, QUIET)
    assert again == found
    assert len(space.built) == 6  # nothing was searched


def test_more_trials_go_on_from_the_records(tmp_path: Path, meter: Meter) -> None:
    space = Copy(TILES)
    workload = layer().workload
    assert len(search([layer()], store(tmp_path), meter, setting(space), 0, QUIET)[workload]) == 1
    assert space.built == TILES[:1]
    assert len(search([layer()], store(tmp_path), meter, setting(space), 3, QUIET)[workload]) == 3
    assert space.built == TILES


def test_shipped_records_are_a_search_that_is_done(tmp_path: Path, meter: Meter) -> None:
    shipping = RecordStore(cpu_features(), user=tmp_path / "shipped", shipped=tmp_path / "none")
    search([layer()], shipping, meter, setting(Copy(TILES[:2])), 2, QUIET)
    space = Copy(TILES)
    found = search([layer()], store(tmp_path), meter, setting(space), 99, QUIET)
    assert [c.point for c in found[layer().workload]] == TILES[:2]
    assert space.built == []


def test_shipped_records_of_avx2_code_only_say_where_avx512_code_may_look(tmp_path: Path, meter: Meter) -> None:
    avx2, avx512 = frozenset({"avx2"}), frozenset({"avx2", "avx512"})

    def on(allowed: frozenset[str], space: Copy) -> Setting:
        return Setting(tvm_target(), allowed, "a cpu", "fp32", 1, {}, {"copy": space})

    shipping = RecordStore(avx2, user=tmp_path / "shipped", shipped=tmp_path / "none")
    search([layer()], shipping, meter, on(avx2, Copy(TILES[1:])), 2, QUIET)
    space = Copy(TILES)
    own = RecordStore(avx512, user=tmp_path / "user", shipped=tmp_path / "shipped")
    search([layer()], own, meter, on(avx512, space), 2, QUIET)
    assert [point["tile"] for point in space.built] in ([2, 4], [4, 2])  # measured again; not 1


def test_a_fresh_store_forgets_and_keeps_what_is_new(tmp_path: Path, meter: Meter) -> None:
    search([layer()], store(tmp_path), meter, setting(Copy(TILES[:2])), 2, QUIET)
    fresh = RecordStore(cpu_features(), user=tmp_path / "user", shipped=tmp_path / "shipped", fresh=True)
    space = Copy(TILES)
    search([layer()], fresh, meter, setting(space), 3, QUIET)
    assert space.built == TILES
    assert len(store(tmp_path).own(layer().workload)) == 5  # both searches


def test_records_of_points_that_the_space_has_no_more_do_not_count(tmp_path: Path, meter: Meter) -> None:
    search([layer()], store(tmp_path), meter, setting(Copy([{"tile": 32}])), 9, QUIET)
    found = search([layer()], store(tmp_path), meter, setting(Copy(TILES)), 9, QUIET)
    assert [c.point for c in found[layer().workload]] == TILES


def test_a_candidate_that_crashes_or_does_not_link_spoils_no_other(tmp_path: Path, meter: Meter) -> None:
    points: list[Point] = [{"tile": 1}, {"tile": 2, "call": "abort"}, {"tile": 4}]
    found = search([layer()], store(tmp_path), meter, setting(Copy(points)), 9, QUIET)
    assert [c.point for c in found[layer().workload]] == [points[0], points[2]]
    failed = store(tmp_path).own(layer().workload)[1]
    assert (failed.point, failed.run_ns) == (points[1], ())
    assert "SIGABRT" in failed.error


def test_a_layer_that_nothing_works_for_is_named(tmp_path: Path, meter: Meter) -> None:
    with pytest.raises(VeltairError, match=r"layer l \(copy.*no candidate works; the last said .*SIGABRT"):
        search([layer()], store(tmp_path), meter, setting(Copy([{"tile": 1, "call": "abort"}])), 9, QUIET)


def test_an_interrupted_search_goes_on_where_it_stopped(
    tmp_path: Path, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed: list[str] = []
    real = Meter.time

    def interrupted(self: Meter, library: Path, symbol: str, *rest: Any, **named: Any) -> list[int]:
        if len(timed) == 2:
            raise KeyboardInterrupt
        timed.append(symbol)
        return real(self, library, symbol, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Meter, "time", interrupted)
        with pytest.raises(KeyboardInterrupt):
            search([layer()], store(tmp_path), meter, setting(Copy(TILES)), 9, QUIET)
    assert [r.point for r in store(tmp_path).own(layer().workload)] == TILES[:2]
    space = Copy(TILES)
    found = search([layer()], store(tmp_path), meter, setting(space), 9, QUIET)
    assert space.built == TILES[2:]
    assert [c.point for c in found[layer().workload]] == TILES


def test_records_of_the_nearest_batch_are_taken(tmp_path: Path, meter: Meter) -> None:
    own = store(tmp_path)
    search([layer()], own, meter, setting(Copy(TILES[:1])), 9, QUIET)
    (made,) = own.own(layer().workload)
    for batch, ns in ((2, 222), (64, 646)):
        values = {name: getattr(made, name) for name in made.__struct_fields__} | {"batch": batch, "run_ns": (ns,)}
        own.append(type(made)(**values))
    for batch, expected in ((1, made.run_ns), (3, (222,)), (128, (646,))):
        wanted = Setting(tvm_target(), cpu_features(), "a cpu", "fp32", batch, {}, {"copy": Copy(TILES[:1])})
        (candidate,) = search([layer()], store(tmp_path), meter, wanted, 1, QUIET)[layer().workload]
        assert candidate.run_ns == expected


def test_ids_stay_inside_their_bounds(tmp_path: Path, meter: Meter) -> None:
    """The kernel traps on an id outside; only the bounds that were given keep it from that."""

    class Trap:
        def points(self, spec: LayerSpec, features: frozenset[str]) -> list[Point]:
            return [{"tile": 1}]

        def build(self, spec: LayerSpec, point: Point, features: frozenset[str]) -> Kernel:
            def body(ids: Any, y: Any) -> None:
                with T.serial(0, 64) as i:
                    with T.If(T.Or(ids[i] < 5, ids[i] > 6)), T.Then():
                        T.evaluate(T.call_extern("int32", "abort"))
                    T.buffer_store(y, ids[i], [i])

            return Kernel(build_prim_func([*spec.inputs, *spec.outputs], body), (), 1, 1)

    ids = Activation("ids", "int64", (64,))
    spec = LayerSpec("l", "trap", (ids,), (Activation("y", "int64", (64,)),), {}, 0)
    inside = Setting(tvm_target(), cpu_features(), "a cpu", "fp32", 1, {"ids": (5, 6)}, {"trap": Trap()})
    assert search([spec], store(tmp_path / "inside"), meter, inside, 1, QUIET)
    outside = Setting(tvm_target(), cpu_features(), "a cpu", "fp32", 1, {"ids": (5, 7)}, {"trap": Trap()})
    with pytest.raises(VeltairError, match="SIGABRT"):
        search([spec], store(tmp_path / "outside"), meter, outside, 1, QUIET)


# Records of elsewhere: seven tiles, of which the last is the fastest by what they say.

WIDE: list[Point] = [{"tile": t} for t in (1, 2, 4, 8, 16, 32, 64)]


def written(
    store: RecordStore, spec: LayerSpec, points: Sequence[Point], cpu: str = "a cpu", tvm: str = TVM
) -> RecordStore:
    for i, point in enumerate(points):
        store.append(
            TuningRecord(spec.workload, 1, point, (1_000_000 - i,), 64, 8, tuple(sorted(cpu_features())), cpu, tvm)
        )
    return store


def shipping(folder: Path) -> RecordStore:
    return RecordStore(cpu_features(), user=folder / "shipped", shipped=folder / "none")


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


class Watched(Progress):
    """Keeps what was told, and (done, all) with it."""

    def __init__(self) -> None:
        super().__init__(disable=True)
        self.told: list[tuple[str, float, float | None]] = []

    def update(self, task_id: TaskID, **named: Any) -> None:
        super().update(task_id, **named)
        task = self.tasks[task_id]
        if "description" in named:
            self.told.append((task.description, task.completed, task.total))


def test_progress_tells_the_layer_the_trial_the_best_and_what_is_left_in_all(tmp_path: Path, meter: Meter) -> None:
    written(store(tmp_path), layer("b", rows=32), TILES[:1])
    watched = Watched()
    specs = [layer("a"), layer("b", rows=32), layer("c")]
    own = store(tmp_path)
    search(specs, own, meter, setting(Copy(TILES)), 9, watched)
    assert [told[1:] for told in watched.told] == [(0, 5), (1, 5), (2, 5), (3, 5), (3, 5), (4, 5), (5, 5)]
    lines = [told[0] for told in watched.told]
    best = [min(r.best_ns for r in own.own(layer().workload)[:count]) for count in (1, 2, 3)]
    assert lines[0] == "search: layer 1 of 2, copy, trial 0/3"
    assert lines[1:4] == [
        f"search: layer 1 of 2, copy, trial {i}/3, best {ns / 1000:.1f} us" for i, ns in enumerate(best, 1)
    ]
    assert lines[4] == "search: layer 2 of 2, copy, trial 1/3, best 1000.0 us"
    assert lines[6].startswith("search: layer 2 of 2, copy, trial 3/3, best ")


def test_progress_tells_where_the_first_points_are_from(tmp_path: Path, meter: Meter) -> None:
    known = written(store(tmp_path), layer(rows=48), WIDE[:4])
    written(known, layer(rows=16), WIDE[:1], cpu="another")
    watched = Watched()
    search([layer(rows=64), layer(rows=16)], known, meter, setting(Copy(WIDE)), 0, watched)
    assert watched.told[0] == (r"search: layer 1 of 2, copy, trial 0/4, points of [48,8] to [48,8] first", 0, 5)
    told = ["first" in line for line, *_ in watched.told[:5]]
    assert told == [True, True, True, False, False]  # as long as they are not measured
    assert watched.told[5] == ("search: layer 2 of 2, copy, trial 0/1, points of another CPU or TVM first", 4, 5)
    assert watched.told[-1][1:] == (5, 5)
