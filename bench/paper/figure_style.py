"""The style of every figure in docs/figures, and the JSON with the same numbers that is written beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from bench.paths import ROOT
from veltair.machine.environment import describe_environment

FIGURES = ROOT / "docs" / "figures"
# Okabe & Ito (2008): distinguishable with every common colour blindness, and as greys by their order of lightness.
COLOURS = {
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "vermilion": "#D55E00",
    "sky": "#56B4E9",
    "purple": "#CC79A7",
    "black": "#222222",
    "grey": "#999999",
}
CYCLE = tuple(COLOURS.values())
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")  # a second sign beside the colour
Data = dict[str, Any]  # what a figure shows

WIDTH, HEIGHT = 4.0, 3.0  # inches of one panel

_STYLE: Mapping[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.prop_cycle": mpl.cycler(color=CYCLE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "savefig.dpi": 160,
    "svg.hashsalt": "veltair",
}


def figure(columns: int = 1, rows: int = 1, *, width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Any]:
    """Creates a figure of `rows` x `columns` panels. Returns it and its axes: one, or an array as `subplots` has it."""
    mpl.use("Agg")
    mpl.rcParams.update(_STYLE)
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(columns * width, rows * height), layout="constrained")


def save(fig: Figure, name: str, data: Mapping[str, Any], folder: Path = FIGURES) -> None:
    """Writes `name`.png and, with the numbers that it shows and the environment, `name`.json.

    data: by convention, "paper" and "ours" hold the figures to compare, "source" says "measured" or "modelled".
    """
    folder.mkdir(parents=True, exist_ok=True)
    fig.savefig(folder / f"{name}.png", metadata={"Software": None})  # the same bytes for the same numbers
    text = json.dumps({**data, "environment": asdict(describe_environment())}, indent=1) + "\n"
    (folder / f"{name}.json").write_text(text, "utf-8")
    from matplotlib import pyplot

    pyplot.close(fig)


def by_policy(points: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for point in points:
        found.setdefault(point["policy"], []).append(point)
    return found
