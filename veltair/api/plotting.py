"""How the results of load tests and simulations are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from veltair.errors import VeltairError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours that people with any colour vision tell apart (Okabe and Ito), the dark ones first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")


def draw_tails(
    latencies_ms: Mapping[str, NDArray[Any]], targets_ms: Mapping[str, float], title: str, path: str | Path | None
) -> Figure:
    """The share of each tenant's queries that took longer than a time, and its target. Saved where `path` is given."""
    figure, axes = _figure(title)
    for number, (name, latency) in enumerate(latencies_ms.items()):
        colour = COLOURS[number % len(COLOURS)]
        ordered = np.sort(latency)
        slower = 1.0 - np.arange(1, len(ordered) + 1) / (len(ordered) + 1)
        axes.step(ordered, slower, where="post", color=colour, label=f"{name}, p99 {_p99(ordered)}")
        axes.axvline(targets_ms[name], color=colour, linestyle=":", linewidth=1)
    axes.set_yscale("log")
    axes.set_xscale("log")
    axes.set_xlabel("latency, ms (dotted: the target)")
    axes.set_ylabel("share of queries that are slower")
    axes.legend(frameon=False)
    return _done(figure, path)


def draw_bars(groups: Mapping[str, Sequence[float]], names: Sequence[str], label: str, title: str, path: Any) -> Figure:
    """Bars of each group (a policy) over the names (tenants)."""
    figure, axes = _figure(title)
    width = 0.8 / len(groups)
    for number, (group, values) in enumerate(groups.items()):
        at = np.arange(len(names)) + (number - (len(groups) - 1) / 2) * width
        axes.bar(at, values, width, color=COLOURS[number % len(COLOURS)], label=group)
    axes.set_xticks(np.arange(len(names)), names, rotation=20 if len(names) > 4 else 0)
    axes.set_ylabel(label)
    axes.legend(frameon=False)
    return _done(figure, path)


def _p99(ordered: NDArray[Any]) -> str:
    return f"{np.percentile(ordered, 99):.3g} ms" if len(ordered) else "none"


def _figure(title: str) -> tuple[Figure, Axes]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise VeltairError("matplotlib is not installed: pip install 'veltair[plot]'") from None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3, linewidth=0.5)
    return figure, axes


def _done(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure
