"""RECom's E and F from `tf.feature_column`s and from Keras layers, compiled from the SavedModel alone.

    python -m bench.recsys.saved_models --tensorflow PYTHON [--models A,B] [--folder DIR] [--json FILE]

Each model is written by TensorFlow, compiled by `veltair compile` in fp32, and both run the same raw features: the
scores agree within 1e-5, and the two are timed in turn. TensorFlow takes a tensor for each feature inside its timing,
so veltair is timed twice: on packed features, and called with an array for each. "Gone" is the part of TensorFlow's
operators that no kernel is left of, those of the tower on both sides among them (RECom: 84 %, of the columns' alone).
`recom-e-columns` has no tower: its score is a weighted sum of what the columns give.
What was written and compiled before is kept; a model takes some 10 minutes. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.paths import CLI, DEMO, RESULTS, ROOT, result_path
from bench.recsys.saved_models.shapes import MODELS, raw_features
from veltair.commands.timing import engine_process
from veltair.commands.timing.alternate_runs import run_alternately
from veltair.machine.environment import describe_environment
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.profiles.runtime import pinned_threads

BATCHES, THREADS, ROUNDS = (32, 256, 2048), 2, 5
SPELLINGS = ("columns", "keras")
CLOSE = 1e-5
IN_TENSORFLOW, HERE = "bench.recsys.saved_models.in_tensorflow", "bench.recsys.saved_models"


def prepare(name: str, spelling: str, folder: Path, python: str) -> tuple[Path, Path, int]:
    """The SavedModel, the artifact, and how many operators TensorFlow runs."""
    saved, artifact = folder / f"{name}-{spelling}", folder / f"{name}-{spelling}.artifact"
    counted = folder / f"{name}-{spelling}.operators"
    if not counted.exists():
        command = [python, "-m", IN_TENSORFLOW, "write", name, spelling, str(saved)]
        written = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        counted.write_text(written.stdout.split()[-1])
    if not artifact.exists():
        command = [*CLI, "compile", str(saved), "--out", str(artifact), "--precision", "fp32", "--trials", "0"]
        command += ["--max-batch", str(max(BATCHES)), "--tensorflow-python", python]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return saved, artifact, int(counted.read_text())


def measure(name: str, saved: Path, artifact: Path, python: str) -> list[dict[str, Any]]:
    """A row for each batch size; raises SystemExit where scores differ."""
    rows = []
    for batch in BATCHES:
        feeds, scores = saved.with_suffix(".npz"), saved.with_suffix(".npy")
        np.savez(feeds, **raw_features(MODELS[name], batch))
        tensorflow = [python, "-m", IN_TENSORFLOW, "run", str(saved), str(THREADS), str(feeds), str(scores)]
        ours = [sys.executable, "-m", HERE, "--run", str(artifact), str(feeds), str(scores.with_suffix(".ours.npy"))]
        ways = [("tensorflow", tensorflow), ("packed", [*ours, "packed"]), ("arrays", [*ours, "arrays"])]
        taken = run_alternately(ways, ROUNDS, quiet=False)
        error = float(np.abs(np.load(scores) - np.load(scores.with_suffix(".ours.npy"))).max())
        if not error <= CLOSE:
            raise SystemExit(f"{name}: scores differ by {error:.2g}, more than {CLOSE:g}")
        rows.append({"batch": batch, "error": error})
        rows[-1] |= {f"{way}_ms": round(ms, 4) for (way, _), ms in zip(ways, taken, strict=True)}
        print(f"{name} {batch:5}", *(f"{way} {ms:.3f}" for (way, _), ms in zip(ways, taken, strict=True)), flush=True)
    return rows


def run(artifact: Path, feeds_file: Path, scores: Path, kind: str) -> None:
    """Our side: saves the scores, then answers turns."""
    os.environ.update(pinned_threads.kernel_environment())  # before TVM is loaded
    import veltair

    with np.load(feeds_file) as given:
        feeds = {name: given[name].astype(object) if given[name].dtype.kind == "S" else given[name] for name in given}
    model = veltair.load(artifact, threads=THREADS)
    np.save(scores, model(feeds)["score"])
    if kind == "arrays":
        engine_process.serve_turns(lambda: model(feeds))
        return
    model.close()
    batch = len(feeds["dense"])
    engine_process.serve_turns(engine_process.load_veltair(load_artifact(artifact), feeds, batch, THREADS))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python with TensorFlow and tf2onnx")
    parser.add_argument(
        "--models",
        default="recom-e-columns,recom-e,recom-f",
        help=f"of {', '.join(MODELS)} (default: all but the last)",
    )
    parser.add_argument("--folder", type=Path, default=DEMO / "saved-models")
    parser.add_argument("--json", type=result_path, default=RESULTS / "saved-models.json")
    parser.add_argument("--run", nargs=4, metavar=("ARTIFACT", "FEEDS", "SCORES", "KIND"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        artifact, feeds, scores = map(Path, args.run[:3])
        run(artifact, feeds, scores, args.run[3])
        return 0
    if not args.tensorflow or (unknown := set(args.models.split(",")) - set(MODELS)):
        parser.error(f"no models {unknown}" if args.tensorflow else "--tensorflow: expected a Python with TensorFlow")
    args.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = json.loads(args.json.read_text("utf-8")) if args.json.exists() else {"models": {}}
    found["environment"] = asdict(describe_environment())
    for name in args.models.split(","):
        for spelling in SPELLINGS:
            saved, artifact, operators = prepare(name, spelling, args.folder.absolute(), args.tensorflow)
            layers = len(load_artifact(artifact).manifest.layers)
            facts = {"operators": operators, "layers": layers, "rows": measure(name, saved, artifact, args.tensorflow)}
            found["models"][f"{name} {spelling}"] = facts
            print(f"{name} {spelling}: {operators} operators, {layers} layers", flush=True)
            args.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
