"""The paper's figures again, from the simulator: PNG and JSON in docs/figures, tables in docs/results.md.

    python bench/figures.py [--only 3 12 …] [--quick]

Every figure is of the model of the paper's machine (`threadripper-3990x.toml`). `--quick` is for trying the plots: it
takes fewer loads and queries, and writes nothing to docs.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import simulated as sim
from figure_style import COLOURS, CYCLE, FIGURES, MARKERS, figure, save
from rich.progress import track

from veltair.scheduler.costs import SOLO
from veltair.scheduler.plan import explain

PAGE = FIGURES.parent / "results.md"
LABELS = {"fcfs": "model-wise", "layerwise": "layer-wise", "block-6": "blocks of 6", "block-11": "blocks of 11"}
TITLES = {
    "prema": "PREMA", "planaria": "Planaria", "veltair-as": "AS", "veltair-ac": "AC", "veltair-full": "FULL",
    "veltair": "veltair (ours)",
}  # fmt: skip
TONES = dict(zip(TITLES, (COLOURS[c] for c in ("grey", "orange", "sky", "green", "blue", "vermilion")), strict=True))
PAPER_GAINS = {"light": 0.71, "medium": 0.62, "heavy": 0.44, "mix": 0.68}  # FULL over Planaria

Data = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=sorted(DRAWN, key=int), default=list(DRAWN), metavar="N")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--redraw", action="store_true", help="from the committed numbers, without a simulation")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="veltair-figures-")) if args.quick else FIGURES
    for number in track(args.only, "figures"):
        compute, draw, name = DRAWN[number]
        data = json.loads((FIGURES / f"{name}.json").read_text("utf-8")) if args.redraw else compute(args.quick)
        data.pop("environment", None)
        save(draw(data), name, data, folder)
    if args.quick:
        print(folder)
    else:
        write_tables()
    return 0


# 3 and 5: fixed granularities under rising load


def granularities(quick: bool) -> Data:
    rates = [100, 200, 300] if quick else list(range(50, 751, 100))
    queries = 1000 if quick else 6000
    asked = [(policy, float(rate), queries) for policy in (*sim.GRANULARITIES, "veltair-full") for rate in rates]
    return {"source": "modelled", "queries": queries, "points": [asdict(p) for p in sim.points(sim.resnet, asked)]}


def draw_3(data: Data) -> Any:
    fig, (left, right) = figure(2)
    for i, (policy, points) in enumerate(_by_policy(data["points"]).items()):
        style = {"marker": MARKERS[i], "color": CYCLE[i], "label": LABELS.get(policy, "FULL (adaptive)")}
        left.plot([p["qps"] for p in points], [100 * p["qos_rate"] for p in points], **style)
        right.plot([p["qps"] for p in points], [p["mean_ms"] for p in points], **style)
    left.set(xlabel="queries per second", ylabel="in target, %", title="(a) QoS satisfaction, modelled", ylim=(0, 103))
    right.set(xlabel="queries per second", ylabel="mean latency, ms", title="(b) latency, modelled", yscale="log")
    right.axhline(sim.RESNET_MS, color=COLOURS["black"], linewidth=0.8, linestyle=":")
    left.legend()
    return fig


def conflicts(quick: bool) -> Data:
    data = granularities(quick)
    rng = np.random.default_rng(1)
    model = sim.machines.load(sim.MACHINE)
    sigma = float(np.sqrt(2 * np.log(model.spawn_mean_ns / model.spawn_median_ns)))
    drawn = rng.lognormal(np.log(model.spawn_median_ns), sigma, 55) / 1e3
    return {**data, "paper": {"layer-wise conflicts at 300 QPS": 0.238}, "spawn_us": sorted(drawn.round(1).tolist())}


def draw_5(data: Data) -> Any:
    fig, (left, right) = figure(2)
    for i, (policy, points) in enumerate(_by_policy(data["points"]).items()):
        left.plot(
            [p["qps"] for p in points], [100 * p["conflict_rate"] for p in points],
            marker=MARKERS[i], color=CYCLE[i], label=LABELS.get(policy, "FULL (adaptive)"),
        )  # fmt: skip
    left.plot([300], [23.8], "k+", markersize=9, label="layer-wise in the paper")
    left.set(xlabel="queries per second", ylabel="conflicts, % of blocks", title="(a) conflicts, modelled")
    left.legend()
    right.bar(range(len(data["spawn_us"])), data["spawn_us"], color=COLOURS["sky"])
    right.axhline(220, color=COLOURS["vermilion"], linewidth=1, label="mean, 220 us")
    right.axhline(100, color=COLOURS["black"], linewidth=1, linestyle=":", label="median, 100 us")
    right.set(xlabel="layers, by overhead", ylabel="us", title="(b) cost of a growth, as drawn")
    right.legend()
    return fig


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
        "source": "modelled", "paper": {"blocks": 4}, "layer_cores": need, "model_cores": model_wise,
        "layer_ns": [costs.time_ns(SOLO, need[i], i, i + 1) for i in range(costs.layers)], "plans": plans,
        "cores": cores,
    }  # fmt: skip


def draw_10(data: Data) -> Any:
    fig, (left, right) = figure(2)
    need = data["layer_cores"]
    left.bar(range(len(need)), need, width=1.0, color=COLOURS["orange"], alpha=0.55, label="layer-wise need")
    left.axhline(data["model_cores"], color=COLOURS["black"], linewidth=1, label="model-wise")
    plan = data["plans"][str(data["cores"] // 2)]
    left.axhline(
        plan["avg_cores"] + plan["threshold_cores"], color=COLOURS["blue"], linewidth=1, linestyle="--",
        label="average + threshold",
    )  # fmt: skip
    for i, block in enumerate(plan["blocks"]):
        left.plot(
            [block["start"] - 0.5, block["stop"] - 0.5], [block["cores"]] * 2, color=COLOURS["green"], linewidth=2.5,
            label="blocks" if i == 0 else None,
        )  # fmt: skip
    left.set(xlabel="layer", ylabel="cores", title=f"(a) ResNet-50: {len(plan['blocks'])} blocks (paper: 4)")
    left.legend()
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


# 11: the interference proxy


def proxy(_quick: bool) -> Data:
    samples, fit = sim.proxy()
    foretold = [
        fit.constant
        + fit.per_miss_rate * (s.l3_misses / s.l3_accesses if s.l3_accesses else 0.0)
        + fit.per_access_per_ns * s.l3_accesses / s.window_ns
        for s in samples
    ]
    return {
        "source": "modelled", "paper": {"variance in L3 counters": 0.99}, "fit": msgspec.to_builtins(fit),
        "level": [s.level for s in samples], "foretold": foretold,
    }  # fmt: skip


def draw_11(data: Data) -> Any:
    fig, (left, right) = figure(2)
    parts = data["fit"]["components"]
    names = list(parts[0]["loadings"])
    below = np.zeros(len(parts))
    for i, name in enumerate(names):
        shares = np.array([100 * part["variance"] * part["loadings"][name] ** 2 for part in parts])
        left.bar(range(1, len(parts) + 1), shares, bottom=below, color=CYCLE[i], label=name.replace("_", " "))
        below += shares
    left.set(xlabel="component", ylabel="variance, %", title="(a) principal components of counters")
    left.legend()
    most = max(*data["level"], *data["foretold"])
    right.plot([1, most], [1, most], color=COLOURS["black"], linewidth=0.8)
    right.plot(data["level"], data["foretold"], "o", markersize=3, alpha=0.6, color=COLOURS["blue"])
    right.set(xlabel="interference level", ylabel="level by the proxy", title="(b) proxy, simulated counters")
    return fig


def table_11(data: Data) -> str:
    fit = data["fit"]
    lines = ["| component | variance | loadings |", "| --- | --- | --- |"]
    for i, part in enumerate(fit["components"], 1):
        loadings = ", ".join(f"{name} {value:+.2f}" for name, value in part["loadings"].items())
        lines.append(f"| {i} | {part['variance']:.1%} | {loadings} |")
    scores = {key: value for key, value in fit.items() if isinstance(value, float)}
    return "\n".join([*lines, "", ", ".join(f"{key} {value:.4g}" for key, value in scores.items())])


# 12 and 13: peaks and latencies


def peaks(quick: bool) -> Data:
    workloads = ("medium",) if quick else sim.WORKLOADS
    asked = [(workload, policy, 0.95, 5) for workload in workloads for policy in sim.STACKS]
    if not quick:
        asked += [(workload, policy, 0.99, 5) for workload in workloads for policy in ("veltair-full", "veltair")]
    found = [asdict(peak) for peak in sim.peaks(asked)]
    return {"source": "modelled", "paper": PAPER_GAINS, "peaks": found}


def draw_12(data: Data) -> Any:
    fig, axis = figure(width=7.5)
    at_95 = [p for p in data["peaks"] if p["percentile"] == 0.95]
    workloads = list(dict.fromkeys(p["workload"] for p in at_95))
    width = 0.8 / len(TITLES)
    for i, (policy, title) in enumerate(TITLES.items()):
        shown = [_ratio(at_95, workload, policy) for workload in workloads]
        places = np.arange(len(workloads)) + (i - (len(TITLES) - 1) / 2) * width
        bars = axis.bar(places, shown, width * 0.92, color=TONES[policy], label=title)
        axis.bar_label(bars, [f"{value:.2f}" for value in shown], fontsize=7, padding=1)
    for i, workload in enumerate(workloads):
        axis.plot([i - 0.4, i + 0.4], [1 + PAPER_GAINS[workload]] * 2, ":", color=COLOURS["black"], linewidth=1,
                  label="FULL in the paper" if i == 0 else None)  # fmt: skip
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set(ylabel="QPS at 95 % QoS over Planaria's", title="Peak load, modelled 3990X, 64 cores")
    axis.legend(ncols=4)
    axis.set_ylim(top=axis.get_ylim()[1] * 1.15)
    return fig


def latencies(quick: bool) -> Data:
    policies = ("veltair-as", "veltair-ac", "veltair-full", "veltair")
    workloads = ("medium",) if quick else ("light", "medium", "heavy")
    if quick:
        found = [asdict(p) for p in sim.peaks([(w, p, 0.95, 5) for w in workloads for p in policies])]
    else:  # the same peaks
        known = json.loads((FIGURES / "fig12-peaks.json").read_text("utf-8"))["peaks"]
        found = [p for p in known if p["workload"] in workloads and p["policy"] in policies and p["percentile"] == 0.95]
    alone = {name: ms for workload in workloads for name, ms in sim.solo_ms(workload).items()}
    paper = {"veltair-as": 1.6, "veltair-ac": 1.17, "veltair-full": 1.1}
    return {"source": "modelled", "paper": paper, "solo_ms": alone, "peaks": found}


def draw_13(data: Data) -> Any:
    fig, axis = figure(width=7.5)
    models, policies = list(data["solo_ms"]), list(dict.fromkeys(p["policy"] for p in data["peaks"]))
    width = 0.8 / len(policies)
    for i, policy in enumerate(policies):
        means = {name: ms for p in data["peaks"] if p["policy"] == policy for name, ms in p["mean_ms"].items()}
        shown = [means.get(model, 0.0) / data["solo_ms"][model] for model in models]
        places = np.arange(len(models)) + (i - (len(policies) - 1) / 2) * width
        axis.bar(places, shown, width * 0.92, color=TONES[policy], label=TITLES[policy])
    axis.axhline(1.0, color=COLOURS["black"], linewidth=1)
    axis.set_xticks(range(len(models)), models, rotation=12)
    axis.set(ylabel="mean latency over solo", title="Latency at each policy's own peak, modelled 3990X")
    axis.legend(ncols=4)
    return fig


# 14: cores used, number of versions


def sensitivity(quick: bool) -> Data:
    workload = "medium"
    top = sim.peak(workload, "veltair-full")
    loads = (0.25, 0.5, 0.75)
    policies = ("layerwise", "veltair-full", "fcfs")
    asked = [(workload, policy, load * top.qps / sim.offered_qps(workload)) for policy in policies for load in loads]
    used = [asdict(point) for point in sim.points(sim.loaded, asked)]
    counts = (1, 2, 5) if quick else (1, 2, 3, 4, 5)
    by_count = sim.peaks([(workload, "veltair-full", 0.95, count) for count in counts])
    return {
        "source": "modelled",
        "paper": {"core gap at 75 %": {"blocks": 0.10, "model-wise": 0.47}, "gain saturates at": 4,
                  "layers that keep five": 0.03},
        "loads": loads, "used": used, "peaks": [asdict(p) for p in by_count],
        "versions": {str(k): n for k, n in sorted(sim.version_counts(workload).items())},
    }  # fmt: skip


def draw_14(data: Data) -> Any:
    fig, (left, middle, right) = figure(3, width=3.2)
    by_policy = _by_policy(data["used"])
    base = [p["core_ms_per_query"] for p in by_policy["layerwise"]]
    for i, (policy, label) in enumerate((("veltair-full", "blocks (FULL)"), ("fcfs", "model-wise"))):
        gaps = [100 * (p["core_ms_per_query"] / b - 1) for p, b in zip(by_policy[policy], base, strict=True)]
        left.plot([100 * x for x in data["loads"]], gaps, marker=MARKERS[i], color=CYCLE[i], label=label)
    left.set(xlabel="load, % of FULL's peak", ylabel="core time over layer-wise, %", title="(a) core use")
    left.legend()
    found = data["peaks"]
    middle.plot([p["versions"] for p in found], [p["qps"] / max(found[0]["qps"], 1e-9) for p in found], marker="o")
    middle.set(xlabel="versions at most", ylabel="peak QPS over one version's", title="(b) versions")
    counts = data["versions"]
    shares = [100 * n / sum(counts.values()) for n in counts.values()]
    right.bar(list(counts), shares, color=COLOURS["sky"])
    right.set(xlabel="versions kept", ylabel="layers, %", title="(c) kept after pruning")
    return fig


# Tables


def write_tables() -> None:
    """Puts what was found between the markers of docs/results.md."""
    text = PAGE.read_text("utf-8")
    for number, (_, _, name) in DRAWN.items():
        path = FIGURES / f"{name}.json"
        if path.exists() and number in TABLES:
            rows = TABLES[number](json.loads(path.read_text("utf-8")))
            pattern = rf"(?s)(<!-- figure {number} -->\n).*?(<!-- end -->)"
            text = re.sub(pattern, lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text)
    PAGE.write_text(text, "utf-8")


def table_3(data: Data) -> str:
    by_policy = _by_policy(data["points"])
    rates = [p["qps"] for p in next(iter(by_policy.values()))]
    lines = [
        "| in target, % at QPS | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |",
        "| --- |" + " --- |" * len(rates),
    ]
    for policy, points in by_policy.items():
        cells = " | ".join(f"{100 * p['qos_rate']:.0f}" for p in points)
        lines.append(f"| {LABELS.get(policy, 'FULL (adaptive)')} | {cells} |")
    return "\n".join(lines)


def table_5(data: Data) -> str:
    by_policy = _by_policy(data["points"])
    rates = [p["qps"] for p in next(iter(by_policy.values()))]
    lines = [
        "| conflicts, % at QPS | " + " | ".join(f"{rate:.0f}" for rate in rates) + " |",
        "| --- |" + " --- |" * len(rates),
    ]
    for policy, points in by_policy.items():
        cells = " | ".join(f"{100 * p['conflict_rate']:.1f}" for p in points)
        lines.append(f"| {LABELS.get(policy, 'FULL (adaptive)')} | {cells} |")
    return "\n".join(lines)


def table_10(data: Data) -> str:
    use, half = core_use(data), str(data["cores"] // 2)
    lines = ["| | ours | paper |", "| --- | --- | --- |"]
    for others, plan in data["plans"].items():
        what = f"blocks of ResNet-50, others need {others} of {data['cores']} cores"
        lines.append(f"| {what} | {len(plan['blocks'])} | {4 if others == half else ''} |")
    lines += [f"| cores of two, {name}: mean / most | {u['mean']:.1f} / {u['most']:.0f} | |" for name, u in use.items()]
    return "\n".join(lines)


def table_12(data: Data) -> str:
    at_95 = [p for p in data["peaks"] if p["percentile"] == 0.95]
    workloads = list(dict.fromkeys(p["workload"] for p in at_95))
    lines = [f"| QPS at 95 % QoS | {' | '.join(workloads)} |", "| --- |" + " --- |" * len(workloads)]
    for policy, title in TITLES.items():
        cells = [f"{_qps(at_95, w, policy):.0f} ({_ratio(at_95, w, policy):.2f}x)" for w in workloads]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines.append(
        "| FULL over Planaria in the paper | " + " | ".join(f"{1 + PAPER_GAINS[w]:.2f}x" for w in workloads) + " |"
    )
    at_99 = [p for p in data["peaks"] if p["percentile"] == 0.99]
    for policy in ("veltair-full", "veltair"):
        lines.append(
            f"| {TITLES[policy]}, at 99 % | {' | '.join(f'{_qps(at_99, w, policy):.0f}' for w in workloads)} |"
        )
    return "\n".join(lines)


def table_13(data: Data) -> str:
    lines = ["| mean latency over solo | " + " | ".join(data["solo_ms"]) + " | mean | paper |"]
    lines.append("| --- |" + " --- |" * (len(data["solo_ms"]) + 2))
    for policy in dict.fromkeys(p["policy"] for p in data["peaks"]):
        means = {name: ms for p in data["peaks"] if p["policy"] == policy for name, ms in p["mean_ms"].items()}
        over = [means[model] / ms if model in means else float("nan") for model, ms in data["solo_ms"].items()]
        cells = " | ".join(f"{value:.2f}" for value in over)
        paper = f"{data['paper'][policy]:g}" if policy in data["paper"] else ""
        lines.append(f"| {TITLES[policy]} | {cells} | {np.mean(over):.2f} | {paper} |")
    return "\n".join(lines)


def table_14(data: Data) -> str:
    by_policy = _by_policy(data["used"])
    base = [p["core_ms_per_query"] for p in by_policy["layerwise"]]
    lines = [
        "| core time over layer-wise at | " + " | ".join(f"{x:.0%}" for x in data["loads"]) + " | paper, at 75 % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy, label, paper in (("veltair-full", "blocks (FULL)", "< 10 %"), ("fcfs", "model-wise", "47 %")):
        cells = " | ".join(
            f"{100 * (p['core_ms_per_query'] / b - 1):+.0f} %" for p, b in zip(by_policy[policy], base, strict=True)
        )
        lines.append(f"| {label} | {cells} | {paper} |")
    found, counts = data["peaks"], data["versions"]
    lines += [
        "",
        "| versions at most | " + " | ".join(str(p["versions"]) for p in found) + " |",
        "| --- |" + " --- |" * len(found),
    ]
    lines.append(
        "| peak QPS over one version's | "
        + " | ".join(f"{p['qps'] / max(found[0]['qps'], 1e-9):.2f}x" for p in found)
        + " |"
    )
    total = sum(counts.values())
    lines += [
        "",
        "Layers that keep "
        + ", ".join(f"{k}: {n / total:.0%}" for k, n in counts.items())
        + " (paper: 3 % keep five).",
    ]
    return "\n".join(lines)


def _by_policy(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        found.setdefault(point["policy"], []).append(point)
    return found


def _qps(found: Sequence[Mapping[str, Any]], workload: str, policy: str) -> float:
    return next(float(p["qps"]) for p in found if (p["workload"], p["policy"]) == (workload, policy))


def _ratio(found: Sequence[Mapping[str, Any]], workload: str, policy: str) -> float:
    return _qps(found, workload, policy) / max(_qps(found, workload, "planaria"), 1e-9)


DRAWN: dict[str, tuple[Callable[[bool], Data], Callable[[Data], Any], str]] = {
    "3": (granularities, draw_3, "fig03-granularity"),
    "5": (conflicts, draw_5, "fig05-conflicts"),
    "10": (blocks, draw_10, "fig10-blocks"),
    "11": (proxy, draw_11, "fig11-proxy"),
    "12": (peaks, draw_12, "fig12-peaks"),
    "13": (latencies, draw_13, "fig13-latency"),
    "14": (sensitivity, draw_14, "fig14-sensitivity"),
}
TABLES: dict[str, Callable[[Data], str]] = {
    "3": table_3, "5": table_5, "10": table_10, "11": table_11, "12": table_12, "13": table_13, "14": table_14,
}  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
