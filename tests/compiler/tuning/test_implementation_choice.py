"""Which way of a layer is taken, by times and by estimates, without any kernel."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from veltair.compiler.design_spaces import SPACES
from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import Activation, LayerSpec
from veltair.compiler.graph.parameters.sequence import LayerNormParameters
from veltair.compiler.stitch.alternatives import ALTERNATIVES, Alternative, stitched
from veltair.compiler.tuning import implementation_choice
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.implementation_choice import AS_IT_IS, LayerWays, choose_implementations, decide
from veltair.compiler.tuning.search_plan import TRIALS, TVM
from veltair.compiler.tuning.setting import Setting
from veltair.machine.isa import cpu_features
from veltair.profiles.records.tuning_records import RecordStore, TuningRecord


def layer(name: str) -> LayerSpec:
    return LayerSpec(name, name, (), (), {}, 0)


@given(st.lists(st.floats(1, 1e9), min_size=4, max_size=4))
def test_the_fastest_way_is_taken_unless_the_layer_itself_is_about_as_fast(times: list[float]) -> None:
    names = ("packed", "one", "other", "tvm")
    ns = dict(zip(names, times, strict=True))
    other = LayerWays(layer("other"), {"fused by TVM": [LayerWays(layer("tvm"), {})]})
    ways = LayerWays(layer("packed"), {"apart": [LayerWays(layer("one"), {}), other]})
    decision = decide(ways, lambda spec: ns[spec.op], margin=1.02)
    apart = ns["one"] + (ns["tvm"] if ns["tvm"] * 1.02 < ns["other"] else ns["other"])
    assert decision.way == ("apart" if apart * 1.02 < ns["packed"] else AS_IT_IS)
    assert decision.total_ns == pytest.approx(apart if decision.way == "apart" else ns["packed"])


X, Y = (Activation(name, "float32", (-16, 64)) for name in "xy")
WEIGHTS = {name: np.ones(64, np.float32) for name in ("scale", "shift")}
NORM = LayerSpec("norm", "layer_norm", (X,), (Y,), WEIGHTS, 0, 1, LayerNormParameters(1e-5))
(STITCHED,) = stitched(NORM)
GRAPH = LayerGraph((NORM, NORM), {}, {}, {"x": X, "y": Y}, (), (), 1)
SETTING = Setting({"kind": "llvm"}, cpu_features(), "a CPU", "fp32", batch=1, bounds={}, spaces=SPACES)


class Searched:
    """A search that finds these times by op, and remembers what it was asked for."""

    def __init__(self, ns: Mapping[str, int]) -> None:
        self.ns = ns
        self.asked: list[str] = []
        self.optional: Mapping[str, int] = {}

    def __call__(self, specs: Sequence[LayerSpec], optional: Mapping[str, int]) -> dict[str, list[Candidate]]:
        self.asked += [spec.op for spec in specs]
        self.optional = optional
        return {s.workload: [Candidate({}, 1, 1, (self.ns[s.op],))] if s.op in self.ns else [] for s in specs}


def store(tmp_path, *recorded: LayerSpec) -> RecordStore:
    found = RecordStore(cpu_features(), user=tmp_path, shipped=tmp_path / "none")
    for spec in recorded:
        point = SPACES[spec.op].points(spec, cpu_features())[0]
        features = tuple(sorted(cpu_features()))
        found.append(TuningRecord(spec.workload, 1, point, (900,), 1, 1, features, "a CPU", TVM))
    return found


@pytest.mark.parametrize(
    ("ns", "op"),
    [
        ({"layer_norm": 1000, "stitched": 900, "generic": 999}, "stitched"),
        ({"layer_norm": 1000, "stitched": 990, "generic": 999}, "layer_norm"),  # within what times repeat to
        ({"layer_norm": 1000, "stitched": 900, "generic": 10}, "generic"),
        ({"layer_norm": 1000}, "layer_norm"),  # no candidate of the others works
    ],
)
def test_a_search_measures_every_way_and_takes_the_fastest(tmp_path, ns: dict[str, int], op: str) -> None:
    searched = Searched(ns)
    graph, _, (choice,) = choose_implementations(GRAPH, ALTERNATIVES, store(tmp_path), SETTING, None, searched)
    assert {spec.op for spec in graph.layers} == {op}
    assert choice.measured
    assert {"layer_norm", "stitched", "generic"} == set(searched.asked)
    assert NORM.workload not in searched.optional
    assert searched.optional[STITCHED.workload] == TRIALS
    assert graph.layers[-1].outputs == (Y,)  # readers find what they found before
    for spec in graph.layers:
        assert all(tensor.name in graph.activations for tensor in (*spec.inputs, *spec.outputs))


def test_records_of_all_ways_decide_without_a_search(tmp_path) -> None:
    searched = Searched({"layer_norm": 1000, "stitched": 500})
    recorded = store(tmp_path, NORM, STITCHED)
    graph, _, (choice,) = choose_implementations(GRAPH, ALTERNATIVES, recorded, SETTING, 0, searched)
    assert choice.measured
    assert {spec.op for spec in graph.layers} == {"stitched"}


@pytest.mark.parametrize(("estimate", "op"), [(99.0, "layer_norm"), (50.0, "stitched"), (None, "layer_norm")])
def test_the_cost_model_decides_where_nothing_is_measured(tmp_path, monkeypatch, estimate, op: str) -> None:
    known = {"layer_norm": 100.0, "stitched": estimate}
    monkeypatch.setattr(implementation_choice, "estimate_ns", lambda spec, batch: known[spec.op])
    searched = Searched({"layer_norm": 1000, "stitched": 1000})
    recorded = store(tmp_path, NORM)  # of the layer alone: nothing to compare its time with
    graph, _, (choice,) = choose_implementations(GRAPH, ALTERNATIVES, recorded, SETTING, 0, searched)
    assert not choice.measured
    assert {spec.op for spec in graph.layers} == set(searched.asked) == {op}
    assert not searched.optional  # what is taken has to work


def test_hopeless_ways_are_not_measured(tmp_path, monkeypatch) -> None:
    known = {"layer_norm": 100.0, "stitched": 1000.0}
    monkeypatch.setattr(implementation_choice, "estimate_ns", lambda spec, batch: known.get(spec.op))
    searched = Searched({"layer_norm": 1000})
    choose_implementations(GRAPH, ALTERNATIVES, store(tmp_path), SETTING, 8, searched)
    assert set(searched.asked) == {"layer_norm"}


def test_without_alternatives_every_layer_stays(tmp_path) -> None:
    nothing: dict[str, Alternative] = {}
    searched = Searched({"layer_norm": 1000})
    graph, _, choices = choose_implementations(GRAPH, nothing, store(tmp_path), SETTING, 8, searched)
    assert graph.layers == GRAPH.layers
    assert not choices
