"""Reproduces the paper's figures on the simulator: PNG and JSON in docs/figures, tables in docs/results.md.

    python -m bench.paper.figures [--only 3 12 … readings] [--quick]

All experiments run first, those of every figure together and the longest first, with the time that is left; then the
figures are drawn. A run that was interrupted continues when it is started again (`bench.paper.experiment_cache`).
"readings" are the tables of `bench.paper.ablations`.

Every figure is of the model of the paper's machine (`threadripper-3990x.toml`). `--quick` tries the plots with fewer
loads and queries, and writes nothing to docs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.paper import ablations
from bench.paper import figure_granularity as granularity
from bench.paper import figure_interference as interference
from bench.paper import figure_policies as policies
from bench.paper.experiment_cache import Call, run
from bench.paper.figure_style import FIGURES, Data, save

PAGE = FIGURES.parent / "results.md"


@dataclass(frozen=True)
class PaperFigure:
    """A figure of the paper: how its data is computed, drawn and tabulated."""

    name: str
    compute: Callable[[bool], Data]  # quick?
    draw: Callable[[Data], Any]
    table: Callable[[Data], str]
    calls: Callable[[bool], list[Call]] = lambda _quick: []  # quick?; its longer experiments


PAPER_FIGURES = {
    "3": PaperFigure(
        "fig03-granularity", granularity.granularities, granularity.draw_3, granularity.table_3, granularity.load_calls
    ),
    "5": PaperFigure(
        "fig05-conflicts", granularity.conflicts, granularity.draw_5, granularity.table_5, granularity.load_calls
    ),
    "7": PaperFigure("fig07-versions-modelled", interference.versions, interference.draw_7, interference.table_7),
    "10": PaperFigure("fig10-blocks", granularity.blocks, granularity.draw_10, granularity.table_10),
    "11": PaperFigure("fig11-proxy", interference.proxy, interference.draw_11, interference.table_11),
    "12": PaperFigure("fig12-peaks", policies.peaks, policies.draw_12, policies.table_12, policies.peak_calls),
    "13": PaperFigure("fig13-latency", policies.latencies, policies.draw_13, policies.table_13),
    "14": PaperFigure(
        "fig14-sensitivity", policies.sensitivity, policies.draw_14, policies.table_14, policies.version_calls
    ),
}


READINGS = "readings"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [*PAPER_FIGURES, READINGS]
    parser.add_argument("--only", nargs="+", choices=every, default=every, metavar="N")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--redraw", action="store_true", help="from the committed numbers, without a simulation")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="veltair-figures-")) if args.quick else FIGURES
    figures = [number for number in args.only if number != READINGS]
    tables = READINGS in args.only and not args.quick
    if not args.redraw:
        calls = [call for number in figures for call in PAPER_FIGURES[number].calls(args.quick)]
        run([*calls, *(ablations.text_calls() + ablations.reading_calls() if tables else [])], "experiments")
    for number in figures:
        shown = PAPER_FIGURES[number]
        print(f"figure {number}: {shown.name}", flush=True)
        data = _committed(shown.name) if args.redraw else shown.compute(args.quick)
        data.pop("environment", None)
        save(shown.draw(data), shown.name, data, folder)
    if args.quick:
        print(folder)
    else:
        write_tables()
    if tables:
        ablations.update(args.redraw)
    return 0


def write_tables() -> None:
    """Replaces the tables between the markers of docs/results.md."""
    text = PAGE.read_text("utf-8")
    for number, shown in PAPER_FIGURES.items():
        rows = shown.table(_committed(shown.name))
        pattern = rf"(?s)(<!-- figure {number} -->\n).*?(<!-- end -->)"
        text = re.sub(pattern, lambda found, rows=rows: f"{found[1]}{rows}\n{found[2]}", text)
    PAGE.write_text(text, "utf-8")


def _committed(name: str) -> Data:
    data: Data = json.loads((FIGURES / f"{name}.json").read_text("utf-8"))
    return data


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except KeyboardInterrupt:
        print("interrupted; run it again to continue", file=sys.stderr)
        raise SystemExit(130) from None
