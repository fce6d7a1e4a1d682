"""FULL against the two Planarias by the paper's text, and under each reading of it alone.

    python -m bench.paper.ablations [--redraw]

Writes docs/figures/readings.json and two tables in docs/results.md. The peaks by the text are those of figure 12; the
rows of single readings have one seed and fewer queries. A run that was interrupted continues.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import msgspec

from bench.paper import experiments as sim
from bench.paper.experiment_cache import Call, run
from bench.paper.figure_policies import PAPER_GAINS, TITLES, VARIANTS
from bench.paper.figure_style import FIGURES, Data
from bench.paper.readings import ABLATIONS, TEXT, Readings, relevant
from bench.policies import planned_share

RESULT = FIGURES / "readings.json"
PAGE = FIGURES.parent / "results.md"
BY_TEXT = (
    *("planaria", "planaria@keeps-late", "layerwise"),
    *("veltair-as", "veltair-full", "veltair-full@passing", "veltair"),
)
ROWS = ("planaria", "layerwise", "veltair-full")  # of each reading
# Runs of layer-wise take ten times as long as FULL's, a block for each layer: of what concerns it, it has these alone.
LAYER_WISE = (
    "as read before",
    "2 layers as the paper counts them",
    "8 static policies have one version",
    "all together",
    "all together, and 7 threads wake at a block's start",
    "all together, and 5, 6a, 6b and 7",
)
WORKLOAD = "medium"  # on which readings are tried alone: it has no query that holds half of the machine


def text_calls() -> list[Call]:
    return [(sim.peak, workload, policy, 0.95, 5) for workload in sim.WORKLOADS for policy in BY_TEXT]


def cells() -> list[tuple[str, str]]:
    """The rows of readings and their policies."""
    tried = [relevant("layerwise", ABLATIONS[row]) for row in LAYER_WISE]
    return [
        (row, policy)
        for policy in ROWS
        for row, readings in ABLATIONS.items()
        if policy != "layerwise" or relevant(policy, readings) in tried
    ]


def reading_calls() -> list[Call]:
    return [
        (sim.peak, WORKLOAD, policy, 0.95, 5, _differs(relevant(policy, ABLATIONS[row])), False, True)
        for row, policy in cells()
    ]


def compute() -> Data:
    by_text, alone = run(text_calls(), "by the text"), run(reading_calls(), "readings")
    return {
        "source": "modelled",
        "queries": {"by the text": sim.QUERIES, "readings": sim.SMALL, "planned share": planned_share.QUERIES},
        "seeds": {"by the text": sim.SEEDS, "readings": sim.SEEDS[:1], "planned share": planned_share.SEEDS},
        "paper": PAPER_GAINS,
        "text": [asdict(peak) for peak in by_text],
        "readings": {row: msgspec.structs.asdict(readings) for row, readings in ABLATIONS.items()},
        "peaks": [{"reading": row, **asdict(peak)} for (row, _), peak in zip(cells(), alone, strict=True)],
    }


def text_table(data: Data) -> str:
    """Peaks by workload with the planned share, and FULL over both Planarias beside the paper's gain."""
    found = {(p["workload"], p["policy"]): p for p in data["text"]}
    workloads = list(dict.fromkeys(p["workload"] for p in data["text"]))
    lines = [f"| QPS at 95 % QoS (planned share) | {' | '.join(workloads)} |", "| --- |" + " --- |" * len(workloads)]
    for policy, title in {**TITLES, **VARIANTS}.items():
        if (workloads[0], policy) in found:
            cells = [f"{found[w, policy]['qps']:.0f} ({found[w, policy]['planned_share']:g})" for w in workloads]
            lines.append(f"| {title} | {' | '.join(cells)} |")
    for base in ("planaria", "layerwise"):
        gains = [_gain(found[w, "veltair-full"]["qps"], found[w, base]["qps"]) for w in workloads]
        lines.append(f"| FULL over {TITLES[base]} | {' | '.join(f'{gain:+.0f} %' for gain in gains)} |")
    lines.append(
        f"| the paper's FULL over Planaria | {' | '.join(f'+{100 * PAPER_GAINS[w]:.0f} %' for w in workloads)} |"
    )
    return "\n".join(lines)


def readings_table(data: Data) -> str:
    """Peaks of both Planarias and FULL, and FULL over both, by reading."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for peak in data["peaks"]:
        found.setdefault(peak["reading"], {})[peak["policy"]] = peak
    lines = [
        f"| QPS on {WORKLOAD} | Planaria (MICRO'20) | layer-wise | FULL | FULL over the first / second |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row, peaks in found.items():
        qps = {policy: float(peak["qps"]) for policy, peak in peaks.items()}
        cells = [f"{qps[policy]:.0f}" if policy in qps else "" for policy in ROWS]
        gains = [f"{_gain(qps[ROWS[2]], qps[base]):+.0f} %" for base in ROWS[:2] if base in qps]
        lines.append(f"| {row} | {' | '.join(cells)} | {' / '.join(gains)} |")
    return "\n".join(lines)


def write_tables(data: Data) -> None:
    text = PAGE.read_text("utf-8")
    for name, rows in (("by the text", text_table(data)), ("readings", readings_table(data))):
        pattern = rf"(?s)(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text)
    PAGE.write_text(text, "utf-8")


def _gain(qps: float, base: float) -> float:
    return 100 * (qps / max(base, 1e-9) - 1)


def _differs(readings: Readings) -> dict[str, Any]:
    """The fields that differ from the paper's text; they name the kept result."""
    text = msgspec.structs.asdict(TEXT)
    return {field: value for field, value in msgspec.structs.asdict(readings).items() if value != text[field]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--redraw", action="store_true", help="the tables, from the committed numbers")
    update(redraw=parser.parse_args().redraw)


def update(redraw: bool = False) -> None:
    """Writes the numbers and both tables."""
    if redraw:
        data = json.loads(RESULT.read_text("utf-8"))
    else:
        data = compute()
        RESULT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    write_tables(data)


if __name__ == "__main__":
    main()
