"""Figures 12, 13 and 14: peaks and latencies of the policies, and their sensitivity to cores and versions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bench.paper import experiments as sim
from bench.paper.experiment_cache import Call, run
from bench.paper.figure_style import COLOURS, CYCLE, FIGURES, MARKERS, Data, by_policy, figure

TITLES = {
    "prema": "PREMA",
    "planaria": "Planaria (MICRO'20)",
    "layerwise": "layer-wise (3.2's Planaria)",
    "veltair-as": "AS",
    "veltair-ac": "AC",
    "veltair-full": "FULL",
    "veltair": "veltair (ours)",
}
TONES = dict(
    zip(TITLES, (COLOURS[c] for c in ("grey", "orange", "purple", "sky", "green", "blue", "vermilion")), strict=True)
)
VARIANTS = {
    "planaria@keeps-late": "Planaria (MICRO'20), late queries served",
    "layerwise@sheds-late": "layer-wise (3.2's Planaria), late queries last",
    "veltair-full@passing": "FULL, others may pass",
    "veltair-full@fixed": "FULL, layers' targets fixed",
    "veltair-full@domains": "FULL, cores by domain",
}
BOUND = "no scheduler exceeds"
AT_99 = ("veltair-full", "veltair")
PAPER_GAINS = {"light": 0.71, "medium": 0.62, "heavy": 0.44, "mix": 0.68}  # FULL over Planaria


# 12 and 13: peaks and latencies


def peak_calls(quick: bool) -> list[Call]:
    workloads = ("medium",) if quick else sim.WORKLOADS
    asked: list[Call] = [(sim.peak, workload, policy, 0.95, 5) for workload in workloads for policy in sim.COMPARED]
    asked += [(sim.peak, workload, policy, 0.95, 5, None, True) for workload in workloads for policy in sim.POOLED]
    if not quick:
        asked += [(sim.peak, workload, policy, 0.99, 5) for workload in workloads for policy in AT_99]
    return asked


def peaks(quick: bool) -> Data:
    found = [asdict(peak) for peak in run(peak_calls(quick), "peaks")]
    return {"source": "modelled", "paper": PAPER_GAINS, "peaks": found, "bounds": bounds(found)}


def bounds(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The QPS of each workload that no scheduler can exceed at 95 %."""
    workloads = dict.fromkeys(str(peak["workload"]) for peak in found)
    return {workload: sim.oracle_bound(workload, 0.95) for workload in workloads}


def draw_12(data: Data) -> Any:
    fig, axis = figure(width=7.5)
    at_95 = _at_95(data)
    workloads = list(dict.fromkeys(p["workload"] for p in at_95))
    titles = {policy: title for policy, title in TITLES.items() if any(p["policy"] == policy for p in at_95)}
    width = 0.8 / len(titles)
    for i, (policy, title) in enumerate(titles.items()):
        shown = [_ratio(at_95, workload, policy) for workload in workloads]
        places = np.arange(len(workloads)) + (i - (len(titles) - 1) / 2) * width
        bars = axis.bar(places, shown, width * 0.92, color=TONES[policy], label=title)
        axis.bar_label(bars, [f"{value:.2f}" for value in shown], fontsize=6, padding=1)
    for i, workload in enumerate(workloads):
        style = {"color": COLOURS["black"], "linewidth": 1, "label": "FULL in the paper" if i == 0 else None}
        axis.plot([i - 0.4, i + 0.4], [1 + PAPER_GAINS[workload]] * 2, ":", **style)
    axis.set_xticks(range(len(workloads)), workloads)
    axis.set(ylabel="QPS at 95 % QoS over Planaria's", title="Peak load, modelled 3990X, 64 cores")
    axis.legend(ncols=4)
    axis.set_ylim(top=axis.get_ylim()[1] * 1.3)
    return fig


def latencies(quick: bool) -> Data:
    policies = ("veltair-as", "veltair-ac", "veltair-full", "veltair")
    workloads = ("medium",) if quick else ("light", "medium", "heavy")
    if quick:
        found = [asdict(p) for p in run([(sim.peak, w, p, 0.95, 5) for w in workloads for p in policies], "peaks")]
    else:  # the same peaks
        known = json.loads((FIGURES / "fig12-peaks.json").read_text("utf-8"))["peaks"]
        found = [p for p in _at_95({"peaks": known}) if p["workload"] in workloads and p["policy"] in policies]
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

SENSITIVE = "medium"  # the workload


def version_calls(quick: bool) -> list[Call]:
    """The last has all versions: the peak of figure 12."""
    counts = (1, 2, 5) if quick else (1, 2, 3, 4, 5)
    return [(sim.peak, SENSITIVE, "veltair-full", 0.95, count) for count in counts]


def sensitivity(quick: bool) -> Data:
    by_count = run(version_calls(quick), "peaks")
    loads = (0.25, 0.5, 0.75)
    policies = ("layerwise", "veltair-full", "fcfs")
    top = by_count[-1].qps / sim.offered_qps(SENSITIVE)
    used = [
        asdict(point)
        for point in run([(sim.loaded, SENSITIVE, p, load * top) for p in policies for load in loads], "loads")
    ]
    core_gap = {"blocks": 0.10, "model-wise": 0.47}
    return {
        "source": "modelled",
        "paper": {"core gap at 75 %": core_gap, "gain saturates at": 4, "layers that keep five": 0.03},
        "loads": loads,
        "used": used,
        "peaks": [asdict(p) for p in by_count],
        "versions": {str(k): n for k, n in sorted(sim.version_counts(SENSITIVE).items())},
    }


def draw_14(data: Data) -> Any:
    fig, (left, middle, right) = figure(3, width=3.2)
    used = by_policy(data["used"])
    base = [p["core_ms_per_query"] for p in used["layerwise"]]
    for i, (policy, label) in enumerate((("veltair-full", "blocks (FULL)"), ("fcfs", "model-wise"))):
        gaps = [100 * (p["core_ms_per_query"] / b - 1) for p, b in zip(used[policy], base, strict=True)]
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


def table_12(data: Data) -> str:
    at_95 = _at_95(data)
    workloads = list(dict.fromkeys(p["workload"] for p in at_95))
    lines = [f"| QPS at 95 % QoS | {' | '.join(workloads)} |", "| --- |" + " --- |" * len(workloads)]
    for policy, title in {**TITLES, **VARIANTS}.items():
        if any(p["policy"] == policy for p in at_95):
            cells = [f"{_qps(at_95, w, policy):.0f} ({_ratio(at_95, w, policy):.2f}x)" for w in workloads]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    gains = " | ".join(f"{1 + PAPER_GAINS[w]:.2f}x" for w in workloads)
    lines.append(f"| FULL over Planaria in the paper | {gains} |")
    if bounds := data.get("bounds"):
        lines.append(f"| {BOUND}, at 95 % | {' | '.join(f'{bounds[w]:.0f}' for w in workloads)} |")
        shares = [f"{_qps(at_95, w, 'veltair') / bounds[w]:.0%}" for w in workloads]
        lines.append(f"| veltair (ours) as a share of it | {' | '.join(shares)} |")
    others = {
        "at 99 %": [p for p in data["peaks"] if p["percentile"] == 0.99],
        "95 % of all queries together": [p for p in data["peaks"] if p.get("pooled")],
    }
    for what, found in others.items():
        for policy in dict.fromkeys(p["policy"] for p in found):
            cells = [f"{_qps(found, w, policy):.0f}" for w in workloads]
            lines.append(f"| {TITLES[policy]}, {what} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _at_95(data: Data) -> list[Any]:
    """The peaks at which each tenant has 95 % in time."""
    return [p for p in data["peaks"] if p["percentile"] == 0.95 and not p.get("pooled")]


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
    used = by_policy(data["used"])
    base = [p["core_ms_per_query"] for p in used["layerwise"]]
    lines = [
        "| core time over layer-wise at | " + " | ".join(f"{x:.0%}" for x in data["loads"]) + " | paper, at 75 % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for policy, label, paper in (("veltair-full", "blocks (FULL)", "< 10 %"), ("fcfs", "model-wise", "47 %")):
        cells = " | ".join(
            f"{100 * (p['core_ms_per_query'] / b - 1):+.0f} %" for p, b in zip(used[policy], base, strict=True)
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


def _qps(found: Sequence[Mapping[str, Any]], workload: str, policy: str) -> float:
    return next(float(p["qps"]) for p in found if (p["workload"], p["policy"]) == (workload, policy))


def _ratio(found: Sequence[Mapping[str, Any]], workload: str, policy: str) -> float:
    return _qps(found, workload, policy) / max(_qps(found, workload, "planaria"), 1e-9)
