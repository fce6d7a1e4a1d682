"""Random networks of ONNX operators, compiled and compared with ONNX Runtime at several extents.

    python -m bench.random_graphs [--count 100] [--seed 1] [--nodes 8] [--open] [--precision fp32] [--int8]
                                   [--jobs 1] [--show SEED] [--out FILE]

Each seed is a network of its own with a dynamic batch, and with `--open` a second dynamic dimension. It is compiled
without a search and run at batches of 1, 2, 3 and 5, in a process with limits of time and memory. With `--int8` ONNX
Runtime's tool quantises it first. `--show` prints a network, and keeps nothing. Results are written after each, and a
run continues where it ended.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.case_outcomes import difference, outcome, right_outputs
from bench.case_workers import add_options, answer, try_cases
from bench.paths import RESULTS, result_path
from bench.random_graphs.quantised import quantised
from bench.random_graphs.random_graph import RandomGraph

BATCHES = (1, 2, 3, 5)
BOUNDS = (4, 16)  # of the second dynamic dimension
STEP = 0.08  # of an output's largest value, in 8-bit integers: numbers in the middle of two steps may become either
EXTENTS = ((1, 4), (2, 6), (3, 9), (5, 16), (1, 13), (2, 16))  # batches and lengths that are compared


def main() -> int:
    args = _arguments()
    if args.worker:
        return answer(lambda _, folder: lambda name: _try(name, folder / name))
    if args.show is not None:
        name = _name(args.show, args)
        graph = _graph(name)
        print(graph.describe())
        with tempfile.TemporaryDirectory() as folder:
            print(_try(name, Path(folder, "graph")))
        return 0
    names = [_name(seed, args) for seed in range(args.seed, args.seed + args.count)]
    return try_cases(names, (sys.executable, "-m", "bench.random_graphs", "--worker"), args, {})


def _name(seed: int, args: argparse.Namespace) -> str:
    """What a network follows from.

    >>> _name(7, argparse.Namespace(nodes=8, open=True, precision="fp32", int8=False))
    'seed 7, 8 nodes, open'
    """
    kinds = ", open" * args.open + ", bf16" * (args.precision == "bf16") + ", int8" * args.int8
    return f"seed {seed}, {args.nodes} nodes{kinds}"


def _seed_and_nodes(name: str) -> tuple[int, int]:
    seed, nodes = re.findall(r"\d+", name)[:2]
    return int(seed), int(nodes)


def _graph(name: str) -> RandomGraph:
    seed, nodes = _seed_and_nodes(name)
    graph = RandomGraph(seed, open_length="open" in name)
    graph.grow(nodes)
    return graph


def _precision(name: str) -> str:
    return "bf16" if "bf16" in name else "fp32"


def _try(name: str, folder: Path) -> str:
    """Compile a network and run it. One that ONNX Runtime does not run at each extent is left out."""
    graph, integers = _graph(name), "int8" in name
    model, options = graph.model(), dict[str, Any](max_batch=max(BATCHES), levels="model", precision=_precision(name))
    every = [graph.feeds(batch) for batch in BATCHES]
    if graph.open_length:
        every, options["dims"] = [graph.feeds(*extents) for extents in EXTENTS], {"L": BOUNDS}
    if integers:
        try:
            steps = quantised(model, graph.feeds(2), _seed_and_nodes(name)[0])
        except Exception as error:  # the tool raises whatever it meets
            return f"left out: ONNX Runtime's tool does not quantise it ({type(error).__name__})"
        if steps is None:
            return "left out: nothing of it is quantised"
        model, options["tolerance"] = steps, STEP
    try:
        for length in range(BOUNDS[0], BOUNDS[1] + 1) if graph.open_length else ():
            right_outputs(model, graph.feeds(2, length))
        runs = [(feeds, list(right_outputs(model, feeds).values())) for feeds in every]
    except Exception:  # ONNX Runtime raises its own types
        return "left out: ONNX Runtime does not run it at each extent"
    if integers:
        plain = [right_outputs(model, feeds, optimised=False) for feeds, _ in runs]
        if any(difference(a, b, STEP) for a, (_, b) in zip(plain, runs, strict=True)):
            return "left out: ONNX Runtime gives another answer where it rewrites it"
    return outcome(folder, model, runs, **options)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.random_graphs", description="Random networks beside ONNX Runtime.")
    parser.add_argument("--count", type=int, default=100, metavar="N", help="networks")
    parser.add_argument("--seed", type=int, default=1, help="of the first one; the others follow")
    parser.add_argument("--nodes", type=int, default=8, metavar="N", help="applications of operators in each")
    parser.add_argument("--open", action="store_true", help="with a second dynamic dimension")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--int8", action="store_true", help="quantised by ONNX Runtime's tool, each in another way")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one network and try it")
    parser.add_argument("--out", type=result_path, default=RESULTS / "random-graphs.json")
    add_options(parser, seconds=300)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
