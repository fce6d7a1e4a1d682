"""Figures 7 and 11: code versions under interference, and the interference proxy by the machine's counters."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from bench.paper import experiments as sim
from bench.paper.figure_style import COLOURS, CYCLE, MARKERS, Data, figure
from bench.paper.version_losses import version_losses
from veltair.scheduler.interference import CounterModel
from veltair.simulation.machine_model.modelled_profiles import PRESSURES
from veltair.types import CounterSample

LOSSES = (0.05, 0.10, 0.20)
PAPER = {"layers that need at most 3 versions for 10 % loss, %": "over 80", "versions for 10 % loss": 5}

# 7: code versions


def versions(_quick: bool) -> Data:
    losses, needed = version_losses(LOSSES)
    shares = {
        f"{loss:.0%}": {str(k): 100 * counts.get(k, 0) / sum(counts.values()) for k in range(1, max(counts) + 1)}
        for loss, counts in zip(LOSSES, needed, strict=True)
    }
    return {
        "source": "modelled",
        "paper": PAPER,
        "pressure_percent": [100 * p for p in PRESSURES],
        "loss_by_versions": losses,
        "layers_by_versions_needed_percent": shares,
    }


def draw_7(data: Data) -> Any:
    fig, (left, right) = figure(2)
    for i, (count, losses) in enumerate(data["loss_by_versions"].items()):
        label = f"{count} version" + "s" * (count != "1")
        left.plot(data["pressure_percent"], 100 * np.array(losses), marker=MARKERS[i], color=CYCLE[i], label=label)
    left.axhline(10, color=COLOURS["grey"], linewidth=1, linestyle="--")
    left.set(xlabel="L3 and bandwidth taken by others, %", ylabel="loss, % (mean over layers)")
    left.set_title("(a) fewer versions than ten, modelled")
    left.legend()
    shares = data["layers_by_versions_needed_percent"]
    below = np.zeros(len(shares))
    for k in range(1, max(map(len, shares.values())) + 1):
        part = [of_loss.get(str(k), 0.0) for of_loss in shares.values()]
        right.bar(list(shares), part, 0.6, below, color=CYCLE[k - 1], label=str(k))
        below += part
    right.set(xlabel="loss allowed", ylabel="layers, %", title="(b) versions needed, modelled")
    right.legend(title="versions", loc="upper left", bbox_to_anchor=(1, 1), reverse=True)
    return fig


def table_7(data: Data) -> str:
    losses, pressures = data["loss_by_versions"], data["pressure_percent"]
    at = [i for i, pressure in enumerate(pressures) if round(pressure) in (0, 30, 60, 90)]
    lines = ["| loss, % at a pressure of | " + " | ".join(f"{pressures[i]:.0f} %" for i in at) + " | paper |"]
    lines.append("| --- |" + " --- |" * (len(at) + 1))
    for count, of_count in losses.items():
        cells = " | ".join(f"{100 * of_count[i]:.1f}" for i in at)
        lines.append(f"| {count} version{'s' * (count != '1')} | {cells} | {'< 10' if count == '5' else ''} |")
    three = sum(share for k, share in data["layers_by_versions_needed_percent"]["10%"].items() if int(k) <= 3)
    return "\n".join(
        [*lines, "", f"At most three versions for a loss of 10 %: {three:.0f} % of the layers (paper: over 80 %)."]
    )


# 11: the interference proxy


def proxy(_quick: bool) -> Data:
    samples, fit = sim.proxy()
    model = CounterModel(fit.constant, fit.per_miss_rate, fit.per_access_per_ns)
    foretold = []
    for s in samples:
        model.observe(CounterSample(0, s.window_ns, round(s.l3_accesses), round(s.l3_misses), "simulated"))
        foretold.append(model.level)
    return {
        "source": "modelled",
        "paper": {"variance in L3 counters": 0.99},
        "fit": msgspec.to_builtins(fit),
        "level": [s.level for s in samples],
        "foretold": foretold,
    }


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
