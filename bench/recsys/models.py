"""Recommendation models end to end beside ONNX Runtime and OpenVINO.

    python -m bench.recsys.models [--models A,B,…] [--tensorflow PYTHON] [--again]

Writes missing models and artifacts into `demo/recsys`, with the tables of a model cut to `mix.TABLE_BYTES`, because
each peer's process holds them as well; verifies every artifact and adds medians of alternate runs to
`bench/results/recsys.json`. Existing results are kept, so that an interrupted run continues; `--again` measures again.
Run it on a machine that does nothing else.

Only veltair runs a model with raw features as a whole. ONNX Runtime and OpenVINO run its lookups and towers with
ready-made ids (`bench.recsys.ready_made`); with `--tensorflow PYTHON`, TensorFlow makes the columns from the same raw
features and ONNX Runtime runs the towers on them: the two times are added.

Peers take their tensors inside the timing, a thousand of them for RECom's models. Veltair is timed twice for a model
with raw features: on packed ones, and from a gRPC request that is decoded, checked and packed in the timing. On several
threads each peer is also timed with a request for each thread at once; the table takes this where a second thread gains
less than `at_once.LEAST_GAIN`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.at_once import fairest_ms
from bench.paths import CLI, DEMO, RESULTS, ROOT, result_path
from bench.recsys.model_engines import AT_ONCE, FROM_REQUEST, draw_inputs
from bench.recsys.ready_made import ready_made, with_lookups
from bench.serving import mix
from veltair.commands.timing import engine_process
from veltair.commands.timing.alternate_runs import run_alternately
from veltair.compiler.features.description_file import load_description
from veltair.compiler.features.feature_description import FeatureDescription
from veltair.machine.environment import describe_environment
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.zoo.registry import RECOMMENDERS, table_cuts

RESULT = RESULTS / "recsys.json"
FOLDER = DEMO / "recsys"
BATCHES = (64, 256, 512)
THREADS = (1, 2)
PRECISIONS = ("fp32", "bf16")
ROUNDS = 5
Times = dict[tuple[int, int, str, str, str | None], float]  # ms by batch, threads, engine, precision, `only`
PEERS = (("onnxruntime", "fp32"), ("openvino", "fp32"), ("openvino", "default"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(RECOMMENDERS), help="separated by commas (default: all)")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="rows of a query")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each engine")
    parser.add_argument("--trials", type=int, help="candidates a layer where there are no records (default: compile's)")
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python with TensorFlow")
    parser.add_argument("--prepare", action="store_true", help="write, compile and verify, but measure nothing")
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"default: {FOLDER.relative_to(ROOT)}")
    parser.add_argument("--json", type=result_path, default=RESULT, help=f"default: {RESULT.relative_to(ROOT)}")
    args = parser.parse_args()
    names, batches = args.models.split(","), [int(batch) for batch in args.batches.split(",")]
    if unknown := [name for name in names if name not in RECOMMENDERS]:
        parser.error(f"no model {', '.join(unknown)}; expected some of {', '.join(RECOMMENDERS)}")
    found: dict[str, Any] = {"models": {}}
    if args.json.exists():
        found = json.loads(args.json.read_text("utf-8"))
    found["environment"] = dataclasses.asdict(describe_environment())
    for name in names:
        facts = found["models"].setdefault(name, {"rows": []})
        wanted = [b for b in batches if args.again or not any(row["batch"] == b for row in facts["rows"])]
        if not wanted and not args.prepare:
            continue
        print(f"== {name}", flush=True)
        files = Files(args.folder, name)
        facts |= prepare(files, args.trials)
        for batch in () if args.prepare else wanted:
            rows = measure(files, batch, args.rounds, args.tensorflow)
            facts["rows"] = [row for row in facts["rows"] if row["batch"] != batch] + rows
            args.json.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
            print(table({name: {"rows": rows}}), flush=True)
    print(table(found["models"]))
    return 0


@dataclasses.dataclass(frozen=True, slots=True)
class Files:
    """Paths of one model's files in a folder."""

    folder: Path
    name: str

    @property
    def model(self) -> Path:
        return self.folder / "models" / f"{self.name}.onnx"

    @property
    def description(self) -> Path | None:
        """None: the model has no raw features."""
        path = self.model.with_suffix(".features.toml")
        return path if path.exists() else None

    @property
    def lookups(self) -> Path:
        """The model with lookups in front."""
        return self.model.with_suffix(".lookups.onnx")

    def artifact(self, precision: str) -> Path:
        return self.folder / f"{self.name}-{precision}"

    def check(self, precision: str) -> Path:
        return self.folder / f"{self.name}-{precision}.verify.json"

    def inputs(self, kind: str, batch: int) -> Path:
        return self.folder / f"{self.name}.{batch}.{kind}.npz"


def prepare(files: Files, trials: int | None) -> dict[str, Any]:
    """Writes and compiles missing files; returns which tables were cut, and the errors of the artifacts."""
    model, rows = files.model, mix.zoo_rows(files.name)
    if not model.exists():
        model.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*CLI, "zoo", files.name, "--out", str(model), *rows], check=True)
    described = [] if files.description is None else ["--features", str(files.description)]
    if files.description is not None and not files.lookups.exists():
        with_lookups(model, load_description(files.description), files.lookups)
    for precision in PRECISIONS:
        artifact = files.artifact(precision)
        if not artifact.exists():
            more = [] if trials is None else ["--trials", str(trials)]
            options = ["--out", str(artifact), "--name", files.name, "--precision", precision, *described, *more]
            options.append("--fresh-timings")  # what is published is measured now
            subprocess.run([*CLI, "compile", str(model), *options], check=True)
            files.check(precision).unlink(missing_ok=True)
        if not files.check(precision).exists():
            command = [*CLI, "verify", str(artifact), str(model), *described, "--json"]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # 1: it differs, and says so
            if not done.stdout:
                raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
            files.check(precision).write_text(done.stdout, "utf-8")
    checks = {precision: json.loads(files.check(precision).read_text("utf-8")) for precision in PRECISIONS}
    return {"cut": [dataclasses.asdict(each) for each in table_cuts(files.name, int(rows[1]))], "verify": checks}


def measure(files: Files, batch: int, rounds: int, tensorflow: str | None) -> list[dict[str, Any]]:
    """Times every engine at one batch size, on every number of threads."""
    description = None if files.description is None else load_description(files.description)
    ready, raw = files.inputs("ready", batch), files.inputs("raw", batch)
    if description is not None:
        draw(files, description, batch)
    rows = []
    for threads in THREADS:
        task = {"threads": threads, "batch": batch, "model": str(files.model)}
        task |= {"artifact": str(files.artifact(PRECISIONS[0]))}  # peers read its ports
        tasks = [
            task | {"engine": "veltair", "precision": precision, "artifact": str(files.artifact(precision))}
            for precision in PRECISIONS
        ]
        whole = {"model": str(files.lookups), "feeds": str(ready)} if description is not None else {}
        if description is not None:
            tasks += [each | {"only": FROM_REQUEST} for each in tasks]
        peers = [task | {"engine": engine, "precision": precision} | whole for engine, precision in PEERS]
        tasks += peers
        if threads > 1:
            tasks += [each | {"only": AT_ONCE} for each in peers]
        if tensorflow and description is not None:
            # A model that has the tables itself is all towers, and gets ids.
            towers = whole if all(map(description.gives_ids, description.inputs)) else {}
            tasks.append(task | {"engine": "onnxruntime", "precision": "fp32", "only": "towers"} | towers)
            script = [tensorflow, "-m", "bench.recsys.tensorflow_columns"]
            columns = [*script, str(files.description), str(threads), str(raw)]
            tasks.append(task | {"engine": "tensorflow", "precision": "fp32", "only": "columns", "command": columns})
        keys = ("engine", "precision", "threads", "batch", "only")
        rows += [
            {key: each[key] for key in keys if key in each} | {"median_ms": round(median, 4)}
            for each, median in zip(
                tasks, run_alternately([*map(engine_command, tasks)], rounds, quiet=True), strict=True
            )
        ]
    return rows


def draw(files: Files, description: FeatureDescription, batch: int) -> None:
    """Draws the raw features that every engine gets, and the ready-made inputs of the peers."""
    names = {feature.name for feature in description.features}
    ports = load_artifact(files.artifact(PRECISIONS[0])).manifest.inputs
    values = draw_inputs(ports, batch)
    raw = {name: v.astype(bytes) if v.dtype.hasobject else v for name, v in values.items() if name in names}
    ready = {name: value for name, value in values.items() if name not in names} | ready_made(description, raw, batch)
    own = {name: (batch, *shape[1:]) for name, (_, shape) in engine_process.read_onnx_inputs(files.model).items()}
    np.savez(files.inputs("raw", batch), **raw)
    np.savez(files.inputs("ready", batch), **{n: v.reshape(own.get(n, v.shape)) for n, v in ready.items()})


def engine_command(task: dict[str, Any]) -> tuple[str, list[str]]:
    """The name of an engine, and the command of its process."""
    return task["engine"], task.get("command") or [
        sys.executable,
        "-m",
        "bench.recsys.model_engines",
        json.dumps(task),
    ]


def times_of(rows: Sequence[Mapping[str, Any]]) -> Times:
    """The times of one model's rows."""
    return {
        (row["batch"], row["threads"], row["engine"], row["precision"], row.get("only")): float(row["median_ms"])
        for row in rows
    }


def peer_ms(times: Times, batch: int, threads: int, peer: tuple[str, str]) -> float:
    """A peer's time for a request, or for each of several at once where more threads gain it little."""
    alone = times[batch, threads, *peer, None]
    on_one = times.get((batch, 1, *peer, None), alone)
    return fairest_ms(on_one, alone, times.get((batch, threads, *peer, AT_ONCE))) if threads > 1 else alone


def table(models: dict[str, Any]) -> str:
    """Markdown: milliseconds, and in brackets our time over the peer's: fp32 over fp32, bf16 over the default."""
    lines = [
        "| model | rows | threads | veltair fp32 | ONNX Runtime fp32 | OpenVINO fp32 | veltair bf16 | OpenVINO default"
        " | TensorFlow's columns + ONNX Runtime | veltair from the request, fp32 / bf16 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, facts in models.items():
        times = times_of(facts["rows"])
        for batch, threads in sorted({key[:2] for key in times}):
            at = {key[2:]: value for key, value in times.items() if key[:2] == (batch, threads)}
            ours, narrow = at["veltair", "fp32", None], at["veltair", "bf16", None]
            ort, dense, default = (peer_ms(times, batch, threads, peer) for peer in PEERS)
            cells = [f"{ours:.2f}", *(f"{peer:.2f} ({ours / peer:.2f}x)" for peer in (ort, dense))]
            cells += [f"{narrow:.2f}", f"{default:.2f} ({narrow / default:.2f}x)"]
            columns = at.get(("tensorflow", "fp32", "columns"))
            both = None if columns is None else columns + at["onnxruntime", "fp32", "towers"]
            cells.append("" if both is None else f"{both:.2f} ({ours / both:.2f}x)")
            requests = [at.get(("veltair", precision, FROM_REQUEST)) for precision in PRECISIONS]
            cells.append(" / ".join(f"{value:.2f}" for value in requests if value is not None))
            lines.append(f"| {name} | {batch} | {threads} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
