"""Searches for real: every candidate is measured, recorded, and not measured again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from copy_search import QUIET, TILES, Copy, layer, setting, store
from onnx import TensorProto, helper
from onnx_protos import I64, model, port, saved
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.prim_func import build_prim_func
from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_spec import Activation, Kernel, LayerSpec, Point
from veltair.compiler.onnx.onnx_model import load_model
from veltair.compiler.pipeline import lower
from veltair.compiler.timing.measure import Meter
from veltair.compiler.tuning.search import search
from veltair.compiler.tuning.setting import Setting
from veltair.errors import ModelError, VeltairError
from veltair.machine.isa import cpu_features, tvm_target
from veltair.machine.topology import usable_machine
from veltair.profiles.records.tuning_records import RecordStore


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


def test_a_loop_that_does_not_end_is_the_files_fault(tmp_path: Path) -> None:
    """Whether its condition ever changes is known to nobody before it runs."""
    step = [helper.make_node("Add", ["v", "v"], ["v_"]), helper.make_node("Abs", ["v_"], ["size"])]  # infinite at last
    step += [helper.make_node("ReduceSum", ["size"], ["s"], keepdims=0)]
    step += [helper.make_node("IsNaN", ["s"], ["nan"]), helper.make_node("Not", ["nan"], ["on"])]
    ports = [port("i", (), I64), port("was", (), TensorProto.BOOL), port("v")]
    body = helper.make_graph(step, "body", ports, [port("on", (), TensorProto.BOOL), port("v_")])
    path = saved(tmp_path, model([helper.make_node("Loop", ["", "", "x"], ["y"], "the Loop", body=body)], constants=[]))
    graph = lower(load_model(path), "fp32")
    with Meter(usable_machine().cores, patience_s=60) as impatient:
        found = search([layer()], store(tmp_path), impatient, setting(Copy(TILES[:1])), 9, QUIET)  # the process is up
        assert found
        impatient.patience_s = 1
        with pytest.raises(ModelError, match=r"ONNX Runtime runs Loop: .*no result within 1 s; a Loop may have no end"):
            search(graph.layers, store(tmp_path), impatient, replace(setting(Copy([])), spaces=SPACES), 0, QUIET)
    assert not store(tmp_path).own(graph.layers[0].workload)


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
