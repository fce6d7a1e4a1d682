"""Which of the ways to compute a layer is taken: the layer as it is, or an alternative (`stitch.alternatives`).

Measured times decide wherever a search measures the layer, or records hold all of its ways. Elsewhere the cost model
decides among the ways that it knows, and only by a clear margin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from veltair.compiler.graph.layer_graph import LayerGraph
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.stitch.alternatives import Alternative, estimate_ns
from veltair.compiler.tuning.frontier import Candidate
from veltair.compiler.tuning.search_plan import is_recorded, plan_search
from veltair.compiler.tuning.setting import Setting
from veltair.profiles.records.tuning_records import RecordStore

Alternatives: TypeAlias = Mapping[str, Alternative]
# (layers, how many candidates of which workloads that may fail) -> candidates by workload
Search: TypeAlias = Callable[[Sequence[LayerSpec], Mapping[str, int]], Mapping[str, list[Candidate]]]

MEASURED_MARGIN = 1.02  # an alternative has to be that much faster: times repeat to a few percent
MODEL_MARGIN = 1.25  # estimates are that far from measured times
HOPELESS = 3.0  # times the layer's own estimate: such an alternative is not measured
AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class LayerWays:
    """A layer, and its alternatives by name; the layers of an alternative may have some themselves."""

    spec: LayerSpec
    ways: Mapping[str, Sequence[LayerWays]]

    def specs(self) -> Iterator[LayerSpec]:
        """The layers of all ways."""
        yield self.spec
        for layers in self.ways.values():
            for layer in layers:
                yield from layer.specs()


@dataclass(frozen=True, slots=True)
class Decision:
    """The way that is taken for a layer, the decisions about the layers that it is made of, and each way's time.

    >>> Decision(AS_IT_IS, (), {AS_IT_IS: 2000.0, "apart": 2100.0}).total_ns
    2000.0
    """

    way: str
    parts: tuple[Decision, ...]
    times_ns: Mapping[str, float]

    @property
    def total_ns(self) -> float:
        return self.times_ns[self.way]


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision about layers of one kind, and what it rests on."""

    spec: LayerSpec  # the first of them
    decision: Decision
    measured: bool  # or estimated


def find_ways(spec: LayerSpec, alternatives: Alternatives, batch: int, *, estimated: bool) -> LayerWays:
    """A layer with its alternatives, without those that the cost model knows to be hopeless.

    batch: of the estimates. estimated: only alternatives whose time the cost model can estimate.
    """
    ways = {}
    own = estimate_ns(spec, batch)
    for name, alternative in alternatives.items():
        if estimated and not alternative.estimated:
            continue
        layers = alternative.make(spec)
        known = [estimate_ns(layer, batch) for layer in layers]
        total = sum(ns for ns in known if ns is not None)
        if layers and (own is None or None in known or total <= own * HOPELESS):
            ways[name] = [find_ways(layer, alternatives, batch, estimated=estimated) for layer in layers]
    return LayerWays(spec, ways)


def decide(layer: LayerWays, cost: Callable[[LayerSpec], float], margin: float) -> Decision:
    """The fastest way; an alternative has to beat the layer as it is by the margin.

    >>> norm, other = (LayerSpec(n, n, (), (), {}, flops=0) for n in ("layer_norm", "stitched"))
    >>> ways = LayerWays(norm, {"stitched": [LayerWays(other, {})]})
    >>> decide(ways, lambda spec: {"layer_norm": 120.0, "stitched": 100.0}[spec.op], margin=1.1).way
    'stitched'
    """
    parts = {way: tuple(decide(part, cost, margin) for part in found) for way, found in layer.ways.items()}
    times = {AS_IT_IS: cost(layer.spec)} | {way: sum(d.total_ns for d in found) for way, found in parts.items()}
    best = min(times, key=lambda way: times[way] * (1 if way == AS_IT_IS else margin))
    return Decision(best, parts.get(best, ()), times)


def apply(decision: Decision, spec: LayerSpec, alternatives: Alternatives) -> Iterator[LayerSpec]:
    """The layers that compute a layer of the kind that was decided about."""
    if decision.way == AS_IT_IS:
        yield spec
        return
    layers = alternatives[decision.way].make(spec)
    for part, layer in zip(decision.parts, layers, strict=True):
        yield from apply(part, layer, alternatives)


def as_chosen(layers: Sequence[LayerSpec], chosen: Sequence[str], alternatives: Alternatives) -> list[LayerSpec] | None:
    """The layers in the ways that a compile took, from the names of its layers; None for no such ways.

    >>> layers = [LayerSpec(name, "stitched", (), (), {}, flops=0) for name in "ab"]
    >>> [layer.name for layer in as_chosen(layers, ["a", "b"], {}) or ()]
    ['a', 'b']
    >>> as_chosen(layers, ["a"], {}) is None
    True
    """
    taken = _first_of(layers, chosen, alternatives)
    return taken if taken is not None and len(taken) == len(chosen) else None


def _first_of(layers: Sequence[LayerSpec], chosen: Sequence[str], alternatives: Alternatives) -> list[LayerSpec] | None:
    """The same for as many of those that were chosen, from the first on, as compute the layers."""
    taken = list[LayerSpec]()
    for layer in layers:
        rest = chosen[len(taken) :]
        if rest[:1] == [layer.name]:
            taken.append(layer)
            continue
        ways = (_first_of(alternative.make(layer), rest, alternatives) for alternative in alternatives.values())
        found = next(filter(None, ways), None)
        if found is None:
            return None
        taken += found
    return taken


def choose_implementations(
    graph: LayerGraph,
    alternatives: Alternatives,
    store: RecordStore,
    setting: Setting,
    trials: int | None,
    search: Search,
) -> tuple[LayerGraph, Mapping[str, list[Candidate]], list[Choice]]:
    """The graph with the fastest way of every layer, the candidates of what was searched, and the choices.

    search: measures the layers that it gets first; of the workloads that it gets then, some may not work.
    """
    found: dict[str, tuple[LayerWays, bool]] = {}  # by symbol: the ways, and whether they are measured
    optional: dict[str, int] = {}  # candidates of the workloads of alternatives
    for spec in graph.layers:
        if spec.symbol in found:
            continue
        budget = _budget(spec, store, setting, trials)
        ways = find_ways(spec, alternatives, setting.batch, estimated=not budget)
        measured = budget > 0 or _is_known(ways, store, setting)
        if measured and not budget:  # an earlier compile may have searched the others as well
            every = find_ways(spec, alternatives, setting.batch, estimated=False)
            ways = every if _is_known(every, store, setting) else ways
        found[spec.symbol] = ways, measured
        optional |= {other.workload: max(budget, optional.get(other.workload, 0)) for other in ways.specs()}

    def estimated_ns(spec: LayerSpec) -> float:
        ns = estimate_ns(spec, setting.batch)
        return inf if ns is None else ns

    decided: dict[str, Choice] = {}
    for symbol, (ways, measured) in found.items():
        if not measured and ways.ways:
            decided[symbol] = Choice(ways.spec, decide(ways, estimated_ns, MODEL_MARGIN), measured)
    specs, needed = list[LayerSpec](), set[str]()
    for spec in graph.layers:
        if spec.symbol in decided:
            taken = list(apply(decided[spec.symbol].decision, spec, alternatives))
            specs += taken
            needed |= {other.workload for other in taken}
        else:
            specs += found[spec.symbol][0].specs()
            needed.add(spec.workload)
    others = {spec.workload for spec in specs} - needed
    candidates = search(specs, {workload: optional[workload] for workload in others})

    def time_of(spec: LayerSpec) -> float:
        return min((candidate.best_ns for candidate in candidates[spec.workload]), default=inf)

    for symbol, (ways, measured) in found.items():
        if measured and ways.ways:
            decided[symbol] = Choice(ways.spec, decide(ways, time_of, MEASURED_MARGIN), measured)
    layers = list[LayerSpec]()
    for spec in graph.layers:
        layers += apply(decided[spec.symbol].decision, spec, alternatives) if spec.symbol in decided else (spec,)
    tensors = {tensor.name: tensor for layer in layers for tensor in (*layer.inputs, *layer.outputs)}
    chosen = replace(graph, layers=tuple(layers), activations={**graph.activations, **tensors})
    return chosen, candidates, list(decided.values())


def _budget(spec: LayerSpec, store: RecordStore, setting: Setting, trials: int | None) -> int:
    """Candidates of each of a layer's alternatives that are measured: as many as the search allows the layer itself.

    0 where the layer is not searched. What a search without trials measures says too little to compare by.
    """
    if trials == 0:
        return 0
    plan = plan_search(spec, store, setting, trials)
    return plan.budget if plan.left else 0


def _is_known(ways: LayerWays, store: RecordStore, setting: Setting) -> bool:
    return all(is_recorded(spec, store, setting) for spec in ways.specs())
