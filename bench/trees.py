"""Ensembles of decision trees beside ONNX Runtime on the same file; OpenVINO runs none.

    python -m bench.trees [--work DIR] [--models boosted,…] [--batches 1,256] [--threads 1,2] [--rounds N] [--out FILE]

The trees are random, of the shapes that XGBoost, LightGBM and scikit-learn grow: all branches down to a depth, the leaf
that gains most each time, all branches down to single rows. Rows are normal numbers.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from bench.part_tables import markdown_table
from bench.paths import CLI, RESULTS, result_path
from veltair.commands.bench import ENGINE_PROCESS
from veltair.commands.timing.alternate_runs import run_alternately
from veltair.machine.environment import describe_environment

FEATURES, MAX_BATCH, ROUNDS = 28, 256, 3
TITLE = "Decision trees"
TEXT = """Ensembles of random trees over 28 features (`python -m bench.trees`), µs of a call, engines in turn on the
same file; the shapes are those that XGBoost, LightGBM and scikit-learn grow
([record 118](decisions/118-decision-trees.md))."""
Children = dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Shape:
    """How many trees, what each adds to, and how one of them grows. ::

    Shape("100 trees of depth 6", trees=100, classes=0, strict=True, missing=False, grow=to_depth(6))
    """

    label: str
    trees: int
    classes: int  # 0: a regression; else each leaf votes for all, or with `strict` each tree adds to one
    strict: bool  # branches by "less", as XGBoost writes them
    missing: bool
    grow: Callable[[np.random.Generator], Children]


def to_depth(depth: int) -> Callable[[np.random.Generator], Children]:
    return lambda rng: {node: (2 * node + 1, 2 * node + 2) for node in range(2**depth - 1)}


def by_gain(leaves: int) -> Callable[[np.random.Generator], Children]:
    """The leaf that gains most is split next: any of them, here."""

    def grow(rng: np.random.Generator) -> Children:
        children, free, count = Children(), [0], 1
        while len(free) < leaves:
            node = free.pop(int(rng.integers(len(free))))
            children[node] = count, count + 1
            free += children[node]
            count += 2
        return children

    return grow


def to_rows(rows: int) -> Callable[[np.random.Generator], Children]:
    """Rows are parted anywhere until each is alone."""

    def grow(rng: np.random.Generator) -> Children:
        children, waiting, count = Children(), [(0, rows)], 1
        while waiting:
            node, held = waiting.pop()
            if held > 1:
                left = int(np.clip(round(held * rng.beta(2, 2)), 1, held - 1))
                children[node] = count, count + 1
                waiting += [(count, left), (count + 1, held - left)]
                count += 2
        return children

    return grow


SHAPES = {
    "boosted": Shape("100 trees of depth 6", 100, 0, strict=True, missing=False, grow=to_depth(6)),
    "classes": Shape("500 trees of depth 6, five classes", 500, 5, strict=True, missing=False, grow=to_depth(6)),
    "leaf-wise": Shape("300 trees of 63 leaves, values missing", 300, 0, strict=False, missing=True, grow=by_gain(63)),
    "forest": Shape("100 trees of 1,000 leaves", 100, 0, strict=False, missing=False, grow=to_rows(1000)),
    "votes": Shape("100 trees of depth 10, five classes", 100, 5, strict=False, missing=False, grow=to_depth(10)),
}


def model(shape: Shape) -> onnx.ModelProto:
    """Scores of the ensemble for rows of FEATURES."""
    rng = np.random.default_rng(0)
    nodes: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "featureids", "values", "modes")}
    nodes |= {name: [] for name in ("truenodeids", "falsenodeids", "missing_value_tracks_true")}
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(shape.trees):
        children = shape.grow(rng)
        for node in range(2 * len(children) + 1):
            left, right = children.get(node, (0, 0))
            mode = ("BRANCH_LT" if shape.strict else "BRANCH_LEQ") if node in children else "LEAF"
            facts = tree, node, int(rng.integers(FEATURES)), float(rng.normal(scale=0.5)), mode
            missing = int(shape.missing and node in children and rng.random() < 0.5)
            for column, fact in zip(nodes.values(), (*facts, left, right, missing), strict=True):
                column.append(fact)
            if node not in children:
                one = (tree % max(shape.classes, 1),)
                for target in range(shape.classes) if shape.classes and not shape.strict else one:
                    for column, fact in zip(leaves.values(), (tree, node, target, float(rng.normal())), strict=True):
                        column.append(fact)
    attributes = {f"nodes_{name}": column for name, column in nodes.items()}
    attributes |= {f"target_{name}": column for name, column in leaves.items()}
    targets = max(shape.classes, 1)
    made = helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=targets, **attributes)
    rows = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", FEATURES])
    scores = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", targets])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([made], "trees", [rows], [scores]), opset_imports=opsets, ir_version=9)


def prepare(name: str, folder: Path) -> Path:
    """The artifact of a model, made where it is not there yet."""
    source, artifact = folder / f"{name}.onnx", folder / name
    if not artifact.exists():
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(model(SHAPES[name]), source)
        command = [*CLI, "compile", source, "--out", artifact, "--max-batch", MAX_BATCH]
        subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return artifact


def measure(artifact: Path, batch: int, threads: int, rounds: int) -> dict[str, float]:
    """The median of each engine in microseconds."""
    engines = ("veltair", "onnxruntime")
    task = {"artifact": str(artifact), "model": f"{artifact}.onnx", "precision": "fp32"}
    task |= {"threads": threads, "batch": batch}
    commands = [(name, [*ENGINE_PROCESS, json.dumps(task | {"engine": name})]) for name in engines]
    medians = run_alternately(commands, rounds, quiet=True)
    return {name: round(1000 * median, 2) for name, median in zip(engines, medians, strict=True)}


def table(found: Mapping[str, Any]) -> str:
    """Markdown: the medians, and ours over ONNX Runtime's."""
    rows = []
    for name, cases in found["models"].items():
        for case in cases:
            own, peer = case["veltair"], case["onnxruntime"]
            times = f"{own:,.1f}", f"{peer:,.1f}", f"{own / peer:.2f}x"
            rows.append([SHAPES[name].label, f"{case['batch']:,}", str(case["threads"]), *times])
    return markdown_table(["", "rows", "threads", "veltair", "ONNX Runtime", "veltair / ONNX Runtime"], rows)


def main() -> int:
    args = _arguments()
    result: dict[str, Any] = {"environment": asdict(describe_environment()), "models": {}}
    artifacts = {name: prepare(name, args.work) for name in args.models.split(",")}
    for name, artifact in artifacts.items():
        cases = result["models"].setdefault(name, [])
        for batch in map(int, args.batches.split(",")):
            for threads in map(int, args.threads.split(",")):
                cases.append({"batch": batch, "threads": threads} | measure(artifact, batch, threads, args.rounds))
        args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(table(result))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("bench.trees", description="Decision trees beside ONNX Runtime.")
    parser.add_argument("--work", type=Path, default=Path("demo/trees"), help="folder of models and artifacts")
    parser.add_argument("--models", default=",".join(SHAPES))
    parser.add_argument("--batches", default=f"1,{MAX_BATCH}")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=result_path, default=RESULTS / "trees.json")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
