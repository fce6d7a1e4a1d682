"""How many of ONNX's own node cases compile, and give ONNX Runtime's results.

    python -m bench.node_cases [--count all|N] [--seed 1] [--names PATTERN,…] [--jobs 1] [--again] [--out FILE]

The cases of `onnx.backend.test` that ONNX Runtime passes and whose tensors are float32, whole numbers or booleans, in a
random order; each is compiled without a search and run, in a process with limits of time and memory, so that a crash or
a case that does not end is seen and costs itself alone. What is refused is named in the results. They are written after
each case, and a run continues where it ended.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases

from bench.case_outcomes import outcome, right_outputs
from bench.case_workers import add_options, answer, try_cases
from bench.paths import RESULTS, result_path

TYPES = {"float32", "int64", "int32", "bool", "uint8", "int8"}
Case = tuple[str, onnx.ModelProto, dict[str, NDArray[Any]], list[NDArray[Any]]]


def main() -> int:
    args = _arguments()
    if args.worker:
        return answer(lambda names, folder: _prepare(names, args.seed, folder))
    warnings.simplefilter("ignore")
    names = [case[0] for case in cases(args.seed)]
    chosen = [name for name in names if any(fnmatch(name, pattern) for pattern in args.names.split(","))][: args.count]
    command = (sys.executable, "-m", "bench.node_cases", "--worker", "--seed", str(args.seed))
    return try_cases(chosen, command, args, {"seed": args.seed, "drawn_from": len(names)})


def cases(seed: int) -> Iterator[Case]:
    """Name, model, inputs and ONNX Runtime's outputs of the cases that count, in a random order."""
    found = sorted(collect_testcases(None), key=lambda case: case.name)
    random.Random(seed).shuffle(found)
    for case in found:
        inputs, _ = case.data_sets[0]
        if not all(isinstance(value, np.ndarray | np.generic) for value in inputs):
            continue  # a sequence, or nothing
        feeds = {port.name: np.asarray(value) for port, value in zip(case.model.graph.input, inputs, strict=False)}
        try:
            outputs = right_outputs(case.model, feeds).values()
        except Exception:  # ONNX Runtime raises its own types
            continue
        arrays = [np.asarray(value) for value in outputs if isinstance(value, np.ndarray | np.generic)]
        if len(arrays) == len(outputs) and {str(a.dtype) for a in (*feeds.values(), *arrays)} <= TYPES:
            yield case.name, case.model, feeds, arrays


def _prepare(names: list[str], seed: int, folder: Path) -> Callable[[str], str]:
    wanted = set(names)
    known = {case[0]: case for case in cases(seed) if case[0] in wanted}

    def try_case(name: str) -> str:
        _, model, feeds, right = known[name]
        return outcome(folder / name, model, [(feeds, right)])

    return try_case


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.node_cases", description="How many of ONNX's node cases work.")
    parser.add_argument("--count", type=lambda text: None if text == "all" else int(text), default=None, metavar="N")
    parser.add_argument("--seed", type=int, default=1, help="of the order in which cases are tried")
    parser.add_argument("--names", default="*", metavar="PATTERN,…", help="of the cases to try (default: all)")
    parser.add_argument("--out", type=result_path, default=RESULTS / "node-cases.json")
    add_options(parser, seconds=120)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
