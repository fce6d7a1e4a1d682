"""Random networks of ONNX operators, compiled and compared with ONNX Runtime at several extents.

    python -m bench.random_graphs [--count 100] [--seed 1] [--nodes 8] [--open] [--jobs 1] [--show SEED] [--out FILE]

Each seed is a network of its own with a dynamic batch, and with `--open` a second dynamic dimension. It is compiled
without a search and run at batches of 1, 2, 3 and 5, in a process with limits of time and memory. `--show` prints a
network, and keeps nothing. Results are written after each, and a run continues where it ended.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.case_outcomes import outcome
from bench.case_workers import answer, try_cases
from bench.paths import RESULTS, result_path
from bench.random_graphs.random_graph import LENGTHS, RandomGraph, reference
from veltair.machine.environment import describe_environment

BATCHES = (1, 2, 3, 5)
BOUNDS = (4, 16)  # of the second dynamic dimension
EXTENTS = ((1, 4), (2, 6), (3, 9), (5, 16), (1, 13), (2, 16))  # batches and lengths that are compared


def main() -> int:
    args = _arguments()
    if args.worker:
        with tempfile.TemporaryDirectory() as folder:
            return answer(lambda _: _trial(Path(folder)))
    if args.show is not None:
        graph = _graph(_name(args.show, args))
        print(graph.describe())
        print(_try(graph, Path(tempfile.mkdtemp()) / "graph"))
        return 0
    found: dict[str, Any] = {"outcomes": {}}
    if args.out.exists():
        found = json.loads(args.out.read_text("utf-8"))
    names = [_name(seed, args) for seed in range(args.seed, args.seed + args.count)]
    wanted = [name for name in names if args.again or name not in found["outcomes"]]
    facts = {"environment": asdict(describe_environment())}
    command = (sys.executable, "-m", "bench.random_graphs", "--worker")
    return try_cases(wanted, command, args.seconds, args.jobs, args.out, {**found, **facts})


def _name(seed: int, args: argparse.Namespace) -> str:
    """What a network follows from.

    >>> _name(7, argparse.Namespace(nodes=8, open=True))
    'seed 7, 8 nodes, open'
    """
    return f"seed {seed}, {args.nodes} nodes" + ", open" * args.open


def _graph(name: str) -> RandomGraph:
    seed, nodes = re.findall(r"\d+", name)
    graph = RandomGraph(int(seed), open_length="open" in name)
    graph.grow(int(nodes))
    return graph


def _trial(folder: Path) -> Callable[[str], str]:
    return lambda name: _try(_graph(name), folder / name)


def _try(graph: RandomGraph, folder: Path) -> str:
    """Compile a network and run it. One that ONNX Runtime does not run at each extent is left out."""
    model, options = graph.model(), dict[str, Any](max_batch=max(BATCHES), levels="model")
    extents = [(batch, LENGTHS[2]) for batch in BATCHES]
    if graph.open_length:
        extents, options["dims"] = list(EXTENTS), {"L": BOUNDS}
    try:
        for length in range(BOUNDS[0], BOUNDS[1] + 1) if graph.open_length else ():
            reference(model, graph.feeds(2, length))
        runs = [(feeds, list(reference(model, feeds).values())) for feeds in (graph.feeds(*each) for each in extents)]
    except Exception:  # ONNX Runtime raises its own types
        return "left out: ONNX Runtime does not run it at each extent"
    return outcome(folder, model, runs, **options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.random_graphs", description="Random networks beside ONNX Runtime.")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="networks")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; the others follow")
    parser.add_argument("--nodes", type=int, default=8, metavar="N", help="applications of operators in each")
    parser.add_argument("--open", action="store_true", help="with a second dynamic dimension")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one network and try it")
    parser.add_argument("--seconds", type=float, default=300, help="that a network may take")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that try networks side by side")
    parser.add_argument("--again", action="store_true", help="try what was tried already")
    parser.add_argument("--out", type=result_path, default=RESULTS / "random-graphs.json")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
