"""Draws the README's figure from the committed results: `python -m bench.serving.peak_figure`.

For each mix and each way of serving it, the greatest load at which every tenant keeps 95 % of its queries within its
target: the median of the rounds in `bench/results`, over gRPC, with the load generator on the same two cores.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.paths import RESULTS, ROOT

TARGET = ROOT / "docs" / "images" / "qps-within-target.png"
MIXES = {
    "mix-vision.json": "Three vision networks\nXeon with AMX, 2 cores",
    "mix-recsys.json": "Two vision, two recommendation\nXeon with AMX, 2 cores",
    "epyc/mix-vision.json": "Three vision networks\nEPYC without AMX, 2 cores",
}
OURS, PEERS = "#0072B2", "#9a9a9a"


def median_peaks(path: Path, percentile: float = 0.95) -> dict[str, float]:
    """Median peak in queries per second by stack."""
    rounds: defaultdict[str, list[float]] = defaultdict(list)
    for search in json.loads(path.read_text("utf-8"))["searches"]:
        if search["percentile"] == percentile:
            rounds[search["stack"]].append(search["peak_qps"] or 0.0)
    return {stack: median(values) for stack, values in rounds.items()}


def best_of_each(path: Path) -> dict[str, float]:
    """The default policy's peak, and that of the best setting of each peer."""
    medians = median_peaks(path)
    best = {"veltair": medians["veltair, veltair"]}
    for peer in ("OpenVINO", "ONNX Runtime", "Triton"):
        reached = [qps for stack, qps in medians.items() if stack.startswith(peer)]
        if reached:  # not every file has Triton among the peers
            best[peer] = max(reached)
    return best


def draw(axes: Axes, title: str, shown: dict[str, float]) -> None:
    """One panel of horizontal bars with their numbers."""
    names, values = list(shown), list(shown.values())
    bars = axes.barh(names[::-1], values[::-1], color=[PEERS] * (len(names) - 1) + [OURS], height=0.62)
    for bar, value in zip(bars, values[::-1], strict=True):
        middle = bar.get_y() + bar.get_height() / 2
        text = f"{value:.0f}" if value else "no load at which the targets hold"
        axes.annotate(text, (value, middle), (5, 0), textcoords="offset points", va="center").set_in_layout(False)
    ratio = f"{values[0] / max(values[1:]):.1f}x the best peer"
    axes.annotate(ratio, (values[0] / 2, len(values) - 1), ha="center", va="center", color="white", weight="bold")
    axes.set_title(title, loc="left", fontsize=9.5)
    axes.set_xlim(0, max(values) * 1.12)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(left=False, bottom=False, labelbottom=False)


def main() -> None:
    figure = Figure(figsize=(11, 2.3), dpi=150, layout="constrained")
    figure.suptitle(
        "Queries per second with 95 % of every tenant's queries within target", x=0.01, ha="left", fontsize=11
    )
    panels = figure.subplots(1, len(MIXES))
    for axes, (name, title) in zip(panels, MIXES.items(), strict=True):
        draw(axes, title, best_of_each(RESULTS / name))
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(TARGET)


if __name__ == "__main__":
    main()
