"""Figures 3, 5 and 10: scheduling granularities and their costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from bench.paper import experiments as sim
from bench.paper.experiment_cache import Call, run
from bench.paper.figure_style import COLOURS, CYCLE, MARKERS, Data, by_policy, figure
from veltair.scheduler.block_plan import explain
from veltair.scheduler.costs.level_grid import SOLO
from veltair.simulation.machine_model.machine_model import load_machine_model

LABELS = {"fcfs": "model-wise", "layerwise": "layer-wise", "block-6": "blocks of 6", "block-11": "blocks of 11"}
RATES, QUICK_RATES = (50, 150, 250, 350, 400, 410, 420, 430, 440, 450), (100, 200, 300)
QUERIES = 6000


# 3 and 5: fixed granularities under rising load


def load_calls(quick: bool) -> list[Call]:
    """The loads, nearer to each other where policies fail; beyond that point a queue only grows with the run."""
    rates = QUICK_RATES if quick else RATES
    queries = 1000 if quick else QUERIES
    policies = (*sim.GRANULARITIES, "veltair-full")
    return [(sim.resnet, policy, float(rate), queries) for policy in policies for rate in rates]


@cache
def granularities(quick: bool) -> Data:
    calls = load_calls(quick)
    points = [asdict(point) for point in run(calls, "loads")]
    return {"source": "modelled", "queries": calls[0][-1], "points": points}


def draw_3(data: Data) -> Any:
    fig, (left, right) = figure(2)
    for i, (policy, points) in enumerate(by_policy(data["points"]).items()):
        style = {"marker": MARKERS[i], "color": CYCLE[i], "label": LABELS.get(policy, "FULL (adaptive)")}
        left.plot([p["qps"] for p in points], [100 * p["qos_rate"] for p in points], **style)
        right.plot([p["qps"] for p in points], [p["mean_ms"] for p in points], **style)
    left.set(xlabel="queries per second", ylabel="in target, %", title="(a) QoS satisfaction, modelled", ylim=(0, 103))
    right.set(xlabel="queries per second", ylabel="mean latency, ms", title="(b) latency, modelled", yscale="log")
    right.axhline(sim.RESNET_MS, color=COLOURS["black"], linewidth=0.8, linestyle=":")
    left.legend()
    return fig


def table_3(data: Data) -> str:
    return _under_load(data, "in target, %", lambda point: f"{100 * point['qos_rate']:.0f}")


def conflicts(quick: bool) -> Data:
    rng, model = np.random.default_rng(1), load_machine_model(sim.MACHINE)
    drawn = rng.lognormal(np.log(model.spawn_median_ns), model.spawn_sigma, 55) / 1e3
    paper = {"layer-wise conflicts at 300 QPS": 0.238}
    return {**granularities(quick), "paper": paper, "spawn_us": sorted(drawn.round(1).tolist())}


def draw_5(data: Data) -> Any:
    fig, (left, right) = figure(2)
    for i, (policy, points) in enumerate(by_policy(data["points"]).items()):
        style = {"marker": MARKERS[i], "color": CYCLE[i], "label": LABELS.get(policy, "FULL (adaptive)")}
        left.plot([p["qps"] for p in points], [100 * p["conflict_rate"] for p in points], **style)
    left.plot([300], [23.8], "k+", markersize=9, label="layer-wise in the paper")
    left.set(xlabel="queries per second", ylabel="conflicts, % of blocks", title="(a) conflicts, modelled")
    left.legend()
    right.bar(range(len(data["spawn_us"])), data["spawn_us"], color=COLOURS["sky"])
    right.axhline(220, color=COLOURS["vermilion"], linewidth=1, label="mean, 220 us")
    right.axhline(100, color=COLOURS["black"], linewidth=1, linestyle=":", label="median, 100 us")
    right.set(xlabel="layers, by overhead", ylabel="us", title="(b) cost of a growth, as drawn")
    right.legend()
    return fig


def table_5(data: Data) -> str:
    return _under_load(data, "conflicts, %", lambda point: f"{100 * point['conflict_rate']:.1f}")


def _under_load(data: Data, what: str, cell: Callable[[Any], str]) -> str:
    found = by_policy(data["points"])
    rates = [f"{p['qps']:.0f}" for p in next(iter(found.values()))]
    lines = [f"| {what} at QPS | {' | '.join(rates)} |", "| --- |" + " --- |" * len(rates)]
    for policy, points in found.items():
        lines.append(f"| {LABELS.get(policy, 'FULL (adaptive)')} | {' | '.join(map(cell, points))} |")
    return "\n".join(lines)


# 10: layer-blocks of ResNet-50


def blocks(_quick: bool) -> Data:
    simulation = sim.resnet_simulation()
    costs, cores = sim.costs_of(simulation, "resnet50"), len(simulation.machine.cores)
    qos_ns = round(sim.RESNET_MS * 1e6)
    model_wise, _ = costs.cores_for(SOLO, 0, costs.layers, qos_ns)
    work, total = costs.work, costs.work[-1]
    need = [costs.cores_for(SOLO, i, i + 1, qos_ns * (work[i + 1] - work[i]) // total)[0] for i in range(costs.layers)]
    # as many neighbours of the same kind as leave half of the machine idle, and a full machine
    plans = {
        str(others): asdict(
            explain(simulation.profiles["resnet50"][0], simulation.machine, qos_ns, 1.0, others, split_by_ops=True)
        )
        for others in (0, cores // 2, cores)
    }
    return {
        "source": "modelled",
        "paper": {"blocks": 4},
        "layer_cores": need,
        "model_cores": model_wise,
        "layer_ns": [costs.time_ns(SOLO, need[i], i, i + 1) for i in range(costs.layers)],
        "plans": plans,
        "cores": cores,
    }


def draw_10(data: Data) -> Any:
    fig, (left, right) = figure(2)
    need = data["layer_cores"]
    left.bar(range(len(need)), need, width=1.0, color=COLOURS["orange"], alpha=0.55, label="layer-wise need")
    left.axhline(data["model_cores"], color=COLOURS["black"], linewidth=1, label="model-wise")
    plan = data["plans"][str(data["cores"] // 2)]
    threshold = plan["avg_cores"] + plan["threshold_cores"]
    left.axhline(threshold, color=COLOURS["blue"], linewidth=1, linestyle="--", label="average + threshold")
    for i, block in enumerate(plan["blocks"]):
        span, style = [block["start"] - 0.5, block["stop"] - 0.5], {"color": COLOURS["green"], "linewidth": 2.5}
        left.plot(span, [block["cores"]] * 2, **style, label="blocks" if i == 0 else None)
    left.set(xlabel="layer", ylabel="cores", title=f"(a) ResNet-50: {len(plan['blocks'])} blocks (paper: 4)")
    left.legend(ncols=2)
    left.set_ylim(top=1.3 * max(need))
    shown = core_use(data)
    places = np.arange(len(shown))
    right.bar(places - 0.2, [u["mean"] for u in shown.values()], 0.4, color=COLOURS["sky"], label="mean")
    right.bar(places + 0.2, [u["most"] for u in shown.values()], 0.4, color=COLOURS["blue"], label="most")
    right.set_xticks(places, list(shown))
    right.set(ylabel="cores", title="(b) cores of two ResNet-50 together")
    right.legend()
    return fig


def core_use(data: Data) -> dict[str, dict[str, float]]:
    """Mean and greatest number of cores of two queries whose layers run in step."""
    need, times = np.array(data["layer_cores"]), np.array(data["layer_ns"])
    plan = data["plans"][str(data["cores"] // 2)]["blocks"]
    spans, spent = [b["cores"] for b in plan], [b["predicted_ns"] for b in plan]
    return {
        "layer-wise": {"mean": 2 * float(np.average(need, weights=times)), "most": 2.0 * float(need.max())},
        "blocks": {"mean": 2 * float(np.average(spans, weights=spent)), "most": 2.0 * max(spans)},
        "model-wise": {"mean": 2.0 * data["model_cores"], "most": 2.0 * data["model_cores"]},
    }


def table_10(data: Data) -> str:
    use, half = core_use(data), str(data["cores"] // 2)
    lines = ["| | ours | paper |", "| --- | --- | --- |"]
    for others, plan in data["plans"].items():
        what = f"blocks of ResNet-50, others need {others} of {data['cores']} cores"
        lines.append(f"| {what} | {len(plan['blocks'])} | {4 if others == half else ''} |")
    lines += [f"| cores of two, {name}: mean / most | {u['mean']:.1f} / {u['most']:.0f} | |" for name, u in use.items()]
    return "\n".join(lines)
