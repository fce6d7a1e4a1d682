"""How many of ONNX's own node cases compile, and give ONNX Runtime's results.

    python -m bench.node_cases [--count 90] [--seed 1] [--out FILE]

Draws cases of `onnx.backend.test` at random among those that ONNX Runtime passes and whose tensors are float32, whole
numbers or booleans; each is compiled without a search and run in process. What is refused is named in the results.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases

import veltair
from bench.paths import RESULTS
from veltair.compiler.tuning.correctness import largest_errors
from veltair.errors import VeltairError
from veltair.machine.environment import describe_environment

TYPES = {"float32", "int64", "int32", "bool", "uint8", "int8"}
TOLERANCE = 1e-3  # of an output's largest value
Case = tuple[str, onnx.ModelProto, dict[str, NDArray[Any]], list[NDArray[Any]]]


def main() -> int:
    args = _arguments()
    warnings.simplefilter("ignore")
    outcomes: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, model, feeds, wanted) in enumerate(cases(args.seed)):
            if number == args.count:
                break
            outcomes[name] = outcome(Path(folder, str(number)), model, feeds, wanted)
            print(f"{number + 1:>4}  {name}: {outcomes[name]}", flush=True)
    kinds = Counter(text.partition(":")[0] for text in outcomes.values())
    found = {"environment": asdict(describe_environment()), "seed": args.seed, "counts": kinds, "outcomes": outcomes}
    args.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(f"of {len(outcomes)}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    return 1 if kinds["wrong"] else 0


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
            outputs = ort.InferenceSession(case.model.SerializeToString()).run(None, feeds)
        except Exception:  # ONNX Runtime raises its own types
            continue
        arrays = [np.asarray(value) for value in outputs if isinstance(value, np.ndarray | np.generic)]
        if len(arrays) == len(outputs) and {str(a.dtype) for a in (*feeds.values(), *arrays)} <= TYPES:
            yield case.name, case.model, feeds, arrays


def outcome(folder: Path, model: onnx.ModelProto, feeds: dict[str, NDArray[Any]], wanted: list[NDArray[Any]]) -> str:
    """`ours`, `with ONNX Runtime`, or what is wrong or refused, and why."""
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(model, str(path))
    try:
        artifact = veltair.compile(path, folder / "artifact", trials=0, precision="fp32")
        with veltair.load(artifact) as run:
            found = run({port.name: feeds[port.name] for port in artifact.inputs})
    except VeltairError as error:
        return f"refused: {str(error).replace(str(path), path.name)[:300]}"
    for port, right in zip(model.graph.output, wanted, strict=True):
        result = np.asarray(found[port.name])
        if result.shape != right.shape:
            return f"wrong: {port.name} has shape {result.shape}, expected {right.shape}"
        _, error = largest_errors(result, right)
        if not error <= TOLERANCE:
            return f"wrong: {port.name} is off by {error:.2g} of its largest value"
    fallback = any(layer.op == "onnxruntime" for layer in artifact.manifest.layers)
    return "with ONNX Runtime" if fallback else "ours"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.node_cases", description="How many of ONNX's node cases work.")
    parser.add_argument("--count", type=int, default=90)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS / "node-cases.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
