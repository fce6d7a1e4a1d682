"""The readings of the paper, one by one and together: peaks of the two Planarias and of FULL under each.

    python -m bench.paper.ablations [--workloads medium …] [--redraw]

Writes docs/figures/readings.json and the table in docs/results.md. A run that was interrupted continues.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import Any

import msgspec

from bench.paper import experiments as sim
from bench.paper.experiment_cache import run
from bench.paper.figure_style import FIGURES, Data
from bench.paper.readings import ABLATIONS, TEXT, Readings, relevant

RESULT = FIGURES / "readings.json"
PAGE = FIGURES.parent / "results.md"
COMPARED = {"planaria": "Planaria", "layerwise": "layer-wise", "veltair-full": "FULL"}


def compute(workloads: list[str]) -> Data:
    cells = [(row, workload, policy) for workload in workloads for policy in COMPARED for row in ABLATIONS]
    asked = [
        (workload, policy, 0.95, 5, _differs(relevant(policy, ABLATIONS[row])), False, True)
        for row, workload, policy in cells
    ]
    peaks = run(sim.peak, asked, "readings")
    rows = [{"reading": row, **asdict(peak)} for (row, _, _), peak in zip(cells, peaks, strict=True)]
    settings = {"queries": sim.SMALL, "seeds": sim.SEEDS[:1], "choosing_seeds": sim.CHOOSING}
    readings = {name: msgspec.structs.asdict(readings) for name, readings in ABLATIONS.items()}
    return {"source": "modelled", **settings, "readings": readings, "peaks": rows}


def table(data: Data) -> str:
    """QPS of Planaria, layer-wise and FULL, and FULL over each, by workload."""
    found = {(p["reading"], p["workload"], p["policy"]): float(p["qps"]) for p in data["peaks"]}
    workloads = list(dict.fromkeys(p["workload"] for p in data["peaks"]))
    lines = [f"| reading | {' | '.join(workloads)} |", "| --- |" + " --- |" * len(workloads)]
    for row in dict.fromkeys(p["reading"] for p in data["peaks"]):
        cells = []
        for workload in workloads:
            planaria, layer_wise, full = (found[row, workload, policy] for policy in COMPARED)
            gains = " / ".join(f"{100 * (full / max(base, 1e-9) - 1):+.0f}" for base in (planaria, layer_wise))
            cells.append(f"{planaria:.0f}, {layer_wise:.0f}, **{full:.0f}** ({gains} %)")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table(data: Data) -> None:
    text = PAGE.read_text("utf-8")
    rows = table(data)
    text = re.sub(r"(?s)(<!-- readings -->\n).*?(<!-- end -->)", lambda found: f"{found[1]}{rows}\n{found[2]}", text)
    PAGE.write_text(text, "utf-8")


def _differs(readings: Readings) -> dict[str, Any]:
    """The fields that differ from the paper's text; they name the kept result."""
    text = msgspec.structs.asdict(TEXT)
    return {field: value for field, value in msgspec.structs.asdict(readings).items() if value != text[field]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=sim.WORKLOADS, default=list(sim.WORKLOADS))
    parser.add_argument("--redraw", action="store_true", help="the table, from the committed numbers")
    arguments = parser.parse_args()
    if arguments.redraw:
        data = json.loads(RESULT.read_text("utf-8"))
    else:
        data = compute(arguments.workloads)
        RESULT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    write_table(data)


if __name__ == "__main__":
    main()
