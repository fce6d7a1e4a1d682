"""Draws the results of `bench.paper.versions` as the paper's Fig. 6, 7 and 9."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogFormatter
from numpy.typing import NDArray

from bench.paper.figure_style import COLOURS, CYCLE, MARKERS, figure, save
from veltair.compiler.timing.modelled_interference import SHARES, MemorySystem, modelled_slowdown
from veltair.compiler.tuning import frontier
from veltair.compiler.tuning.frontier import Candidate
from veltair.machine.cache_traffic import LoopLevel

CORES = 1  # as beside a real co-runner, which has the other core
PRESSURE = [100 * (1 - share) for share in SHARES]  # per cent of cache and bandwidth that others take
XLABEL = "LLC and bandwidth taken by others, %"
LOSSES = (0.05, 0.10, 0.20)
DIFFERENT = 0.01  # of a loss: less is a tie
QOS_FACTOR = 3  # a layer's share of the target, of the time of its best sample, as `veltair compile` has it
MODELLED = "times alone measured, pressure modelled"


def draw(found: Mapping[str, Any], folder: Path) -> None:
    memory = MemorySystem(**found["memory"])
    searched = [_SampledLayer(entry, memory) for entry in found["layers"]]
    recorded = [_SampledLayer(entry, memory) for entry in found["records"]]
    facts = {"source": MODELLED, "memory": found["memory"], "cores": CORES, "measured_on": found["environment"]}
    _figure_6(next(x for x in searched if "3x3, 256" in x.name), facts, folder)
    everything = [*searched, *(x for x in recorded if x.name not in {y.name for y in searched})]
    _figure_7(everything, facts, folder)
    _figure_9(next(x for x in searched if "832 to 384" in x.name), everything, facts, folder)
    _measured(searched, facts, folder)


class _SampledLayer:
    """All samples of one layer, and their times at the ten pressures."""

    def __init__(self, entry: Mapping[str, Any], memory: MemorySystem) -> None:
        self.name = f"{entry['model']}: {entry['name']}"
        self.count = int(entry.get("count", 1))
        self.samples: Sequence[Mapping[str, Any]] = entry["samples"]
        self.candidates = [
            Candidate(s["point"], s["block_size"], s["parallelism"], tuple(s["run_ns"])) for s in self.samples
        ]
        self.ns: NDArray[np.float64] = np.array([self._under(sample, memory) for sample in self.samples])
        self.best = self.ns.min(axis=0)  # naive search: of all samples, at each pressure
        self.optimal = list(dict.fromkeys(self.ns.argmin(axis=0).tolist()))  # by rising pressure

    def _under(self, sample: Mapping[str, Any], memory: MemorySystem) -> list[float]:
        alone = sample["run_ns"][CORES - 1]
        reuse = [LoopLevel(*level) for level in sample["reuse"]]
        # The layer by itself: what it touches stays in the cache between two queries as far as there is room.
        resident = max(level.working_set_bytes(1) for level in reuse) + reuse[-1].traffic_bytes
        return [alone * modelled_slowdown(alone, reuse, CORES, share, memory, resident) for share in SHARES]

    def loss(self, kept: Sequence[int]) -> NDArray[np.float64]:
        """The slowdown of the best of some samples over the best of all, at each pressure."""
        return np.asarray(self.ns[list(kept)].min(axis=0) / self.best - 1)

    def indices(self, chosen: Sequence[Candidate]) -> list[int]:
        return [next(i for i, c in enumerate(self.candidates) if c is one) for one in chosen]

    @property
    def qos_ns(self) -> float:
        return QOS_FACTOR * min(c.best_ns for c in self.candidates)

    def dominant(self) -> list[Candidate]:
        return frontier.extract_dominant(c for c in self.candidates if c.best_ns <= self.qos_ns)

    def five(self) -> list[int]:
        """Alg. 1 to the letter: five evenly along the frontier."""
        return self.indices(frontier.pick_evenly(self.dominant(), frontier.VERSIONS))

    def ours(self) -> list[int]:
        return self.indices(frontier.select_versions(self.candidates, self.qos_ns))

    def pruned(self, kept: Sequence[int]) -> list[int]:
        return [kept[i] for i in frontier.prune_versions(self.ns[list(kept)])]

    def needed(self, loss: float) -> int:
        """Versions, of those that are best at some pressure, without which the loss would be greater."""
        return len(frontier.prune_versions(self.ns[self.optimal], max_loss=loss))

    def left(self, count: int) -> list[int]:
        """The best `count` of them; one alone is the fastest without interference, as a search would give it."""
        if count == 1:
            return [int(self.ns[:, 0].argmin())]
        return [self.optimal[i] for i in frontier.drop_least_missed(self.ns[self.optimal], count)]


def _figure_6(layer: _SampledLayer, facts: Mapping[str, Any], folder: Path) -> None:
    """The versions that are best at some pressure, the best alone first, at all pressures."""
    picks = layer.optimal
    fig, (left, right) = figure(2, width=4.6)
    for n, pick in enumerate(picks):
        style = {"marker": MARKERS[n], "color": CYCLE[n], "label": f"version {n + 1}: {_brief(layer, pick)}"}
        left.plot(PRESSURE, layer.ns[pick] / layer.ns[pick, 0], **style)
        right.plot(PRESSURE, layer.ns[pick] / 1000, **style)
    right.plot(PRESSURE, layer.best / 1000, ":", color=COLOURS["black"], linewidth=2.4, label="best of all samples")
    left.set(xlabel=XLABEL, ylabel="time over time alone", title="(a) each version against itself")
    right.set(xlabel=XLABEL, ylabel="µs", title="(b) the best changes")
    left.legend(loc="upper left")
    right.legend(handles=right.lines[-1:])
    fig.suptitle(f"{layer.name}: {MODELLED}", fontsize=10)
    solo = picks[0]
    data = {
        "paper": {"best solo version slows down by up to": 7.0, "versions that are best somewhere": 4},
        "ours": {
            "best solo version slows down by up to": layer.ns[solo, -1] / layer.ns[solo, 0],
            "versions that are best somewhere": len(layer.optimal),
            "best solo version over the best at the highest pressure": layer.loss([solo])[-1] + 1,
        },
        "pressure_percent": PRESSURE,
        "versions": [{"point": layer.samples[i]["point"], "ns": layer.ns[i].tolist()} for i in picks],
        "best_ns": layer.best.tolist(),
    }
    save(fig, "fig06-versions-under-interference", facts | data, folder)


def _brief(layer: _SampledLayer, pick: int) -> str:
    point = layer.samples[pick]["point"]
    words = [f"{key} {value}" for key, value in point.items() if key not in ("algorithm", "m")]
    kind = str(point.get("algorithm", ""))
    return ", ".join([kind + str(point.get("m", "")), *words]).strip(", ")


def _figure_7(layers: Sequence[_SampledLayer], facts: Mapping[str, Any], folder: Path) -> None:
    """Loss of one to five versions against one for each pressure; how many versions layers need."""
    weights = [layer.count for layer in layers]
    fig, (left, middle, right) = figure(3)
    by_count = {}
    for k in range(1, 6):
        losses = np.average([layer.loss(layer.left(k)) for layer in layers], axis=0, weights=weights)
        by_count[k] = losses.tolist()
        label = "1 version" if k == 1 else f"{k} versions"
        left.plot(PRESSURE, 100 * losses, marker=MARKERS[k - 1], color=CYCLE[k - 1], label=label)
    left.axhline(10, color=COLOURS["grey"], linewidth=1, linestyle="--")
    left.set(xlabel=XLABEL, ylabel="loss, % (mean over layers)", title="(a) fewer versions than ten")
    left.legend()

    needs = {loss: [layer.needed(loss) for layer in layers] for loss in LOSSES}
    most = max(max(each) for each in needs.values())
    bottom = np.zeros(len(LOSSES))
    shares = {}
    for k in range(1, most + 1):
        part = [100 * np.average([n == k for n in needs[loss]], weights=weights) for loss in LOSSES]
        shares[k] = dict(zip(map(str, LOSSES), part, strict=True))
        middle.bar([f"{loss:.0%}" for loss in LOSSES], part, 0.6, bottom, color=CYCLE[k - 1], label=str(k))
        bottom += part
    middle.set(xlabel="loss allowed", ylabel="layers, %", title="(b) versions needed")
    middle.legend(title="versions", loc="upper left", bbox_to_anchor=(1, 1), reverse=True)

    ways = {
        "fastest alone": [[int(layer.ns[:, 0].argmin())] for layer in layers],
        "Alg. 1: five of the frontier": [layer.five() for layer in layers],
        "Alg. 1 and the fastest": [layer.ours() for layer in layers],
        "the same, pruned at 10 %": [layer.pruned(layer.ours()) for layer in layers],
    }
    single_pass = {}
    for n, (label, kept) in enumerate(ways.items()):
        losses = np.average([x.loss(k) for x, k in zip(layers, kept, strict=True)], axis=0, weights=weights)
        mean = float(np.average([len(k) for k in kept], weights=weights))
        single_pass[label] = {"loss": losses.tolist(), "versions": mean}
        right.plot(PRESSURE, 100 * losses, marker=MARKERS[n], color=CYCLE[n], label=f"{label} ({mean:.1f})")
    right.set(xlabel=XLABEL, ylabel="loss, % (mean over layers)", title="(c) one pass against ten searches")
    right.legend(title="way (versions a layer)")
    fig.suptitle(f"{len(layers)} kinds of layers: {MODELLED}", fontsize=10)
    ours = {
        "layers that need at most 3 versions for 10 % loss, %": 100
        * float(np.average([n <= 3 for n in needs[0.10]], weights=weights)),
        "most versions a layer needs for 10 % loss": max(needs[0.10]),
        "loss of one version at the highest pressure, %": 100 * by_count[1][-1],
    }
    paper = {
        "layers that need at most 3 versions for 10 % loss, %": "over 80",
        "most versions a layer needs for 10 % loss": 5,
    }
    data = {"paper": paper, "ours": ours, "pressure_percent": PRESSURE, "loss_by_versions": by_count}
    data |= {"layers_by_versions_needed_percent": shares, "single_pass": single_pass, "layers": len(layers)}
    save(fig, "fig07-versions-needed", facts | data, folder)


def _figure_9(example: _SampledLayer, layers: Sequence[_SampledLayer], facts: Mapping[str, Any], folder: Path) -> None:
    """Light- and heavy-optimal versions; samples, filter, frontier and picks of one layer."""
    fig, axes = figure(2, 2)
    axes = axes.flat
    pairs = []
    for layer in layers:
        light, heavy = (layer.candidates[int(layer.ns[:, at].argmin())] for at in (0, -1))
        if layer.loss([int(layer.ns[:, 0].argmin())])[-1] > DIFFERENT:
            pairs.append((light, heavy))
            xs, ys = zip(*((c.block_size / 1024, c.parallelism) for c in (light, heavy)), strict=True)
            axes[0].plot(xs, ys, color="#cccccc", linewidth=0.7, zorder=1)
    for n, label in enumerate(("best alone", "best at the highest pressure")):
        xs, ys = zip(*((pair[n].block_size / 1024, pair[n].parallelism) for pair in pairs), strict=True)
        colour = (COLOURS["blue"], COLOURS["vermilion"])[n]
        axes[0].scatter(xs, ys, s=18, marker=MARKERS[n], color=colour, label=label, zorder=2)
    axes[0].set_title(f"(a) {len(pairs)} of {len(layers)} layers, whose best changes")
    axes[0].legend(loc="upper right", frameon=True)

    meeting = [c for c in example.candidates if c.best_ns <= example.qos_ns]
    slow = [c for c in example.candidates if c.best_ns > example.qos_ns]
    dominant, five = example.dominant(), [example.candidates[i] for i in example.five()]
    kept = [example.candidates[i] for i in example.pruned(example.ours())]
    grey, blue, red, green = (COLOURS[c] for c in ("grey", "blue", "vermilion", "green"))
    series: list[list[tuple[Sequence[Candidate], str, Mapping[str, Any]]]] = [
        [(example.candidates, "samples", {"color": grey})],
        [(slow, "too slow", {"color": "#d8d8d8"}), (meeting, "meet the QoS share", {"color": blue})],
        [
            (meeting, "meet the QoS share", {"color": "#bcd7ea"}),
            (dominant, "dominant", {"color": red, "marker": "D"}),
            (five, "picked, Alg. 1", {"facecolor": "none", "edgecolor": COLOURS["black"], "s": 90}),
            (kept, "kept by us", {"facecolor": "none", "edgecolor": green, "marker": "s", "s": 160}),
        ],
    ]
    titles = ("(b) samples of the search", "(c) QoS filter", "(d) dominants and picks")
    for ax, drawn, title in zip(axes[1:], series, titles, strict=True):
        for of, label, style in (each for each in drawn if each[0]):
            xs, ys = [c.block_size / 1024 for c in of], [c.parallelism for c in of]
            ax.scatter(xs, ys, **({"s": 20} | dict(style)), label=f"{label} ({len(of)})")
        ax.set_title(title)
        ax.legend(loc="upper right", markerscale=0.7)
    for ax in axes:
        ax.set(xlabel="block size, KB", ylabel="parallelism", xscale="log", yscale="log")
        ax.xaxis.set_major_formatter(LogFormatter(minor_thresholds=(2, 1)))
        ax.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 1)))
        ax.set_ylim(top=ax.get_ylim()[1] * 4)  # room for the legend
    fig.suptitle(f"(a) {MODELLED}; (b) to (d) measured, {example.name}", fontsize=10)
    smaller = [heavy.block_size < light.block_size for light, heavy in pairs]
    wider = [heavy.parallelism > light.parallelism for light, heavy in pairs]
    data = {
        "paper": {"best under pressure": "smaller blocks and more parallelism than the best alone, generally"},
        "ours": {
            "layers whose best changes": len(pairs),
            "of them with smaller blocks under pressure": sum(smaller),
            "of them with more parallelism under pressure": sum(wider),
            "samples, meeting the QoS share, dominant, picked, kept": [
                len(each) for each in (example.candidates, meeting, dominant, five, kept)
            ],
        },
        "pairs": [[[c.block_size, c.parallelism] for c in pair] for pair in pairs],
    }
    save(fig, "fig09-parallelism-and-locality", facts | data, folder)


def _measured(layers: Sequence[_SampledLayer], facts: Mapping[str, Any], folder: Path) -> None:
    """What a real co-runner costs each sample, beside where it stands among the samples alone."""
    fig, ax = figure(width=8)
    data = {}
    for n, layer in enumerate(layers):
        pressed = [(s["run_ns"][0], s["pressed_ns"][0]) for s in layer.samples if "pressed_ns" in s]
        alone, beside = np.array(pressed, dtype=np.float64).T
        cost = 100 * (beside / alone - 1)
        data[layer.name] = {"median_cost_percent": float(np.median(cost)), "least": cost.min(), "greatest": cost.max()}
        data[layer.name]["best_alone_is_best_beside"] = bool(alone.argmin() == beside.argmin())
        data[layer.name]["loss_of_best_alone_percent"] = 100 * (beside[alone.argmin()] / beside.min() - 1)
        x = alone / alone.min()
        ax.scatter(x, cost, s=14, marker=MARKERS[n], color=CYCLE[n], label=layer.name, alpha=0.8)
    ax.axhline(0, color=COLOURS["grey"], linewidth=1)
    ax.set(xlabel="time alone over the layer's best", ylabel="a streaming co-runner costs, %", xscale="log")
    ax.set_title("Measured: one core, a co-runner on the other")
    ax.xaxis.set_major_formatter(LogFormatter(minor_thresholds=(2, 1)))
    ax.xaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 1)))
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    save(fig, "versions-beside-a-co-runner", {**facts, "source": "measured", "ours": data}, folder)
