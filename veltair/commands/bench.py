"""`veltair bench`: an artifact beside ONNX Runtime and OpenVINO, timed in turn in one run."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from veltair.commands.timing.alternate_runs import NotStartedError, run_alternately
from veltair.commands.timing.engine_process import read_onnx_inputs
from veltair.errors import ConfigError, ModelError
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import Artifact, file_digest, load_artifact
from veltair.terminal import Column, ResultTable, result_console

ROUNDS = 7
ENGINE_PROCESS = [sys.executable, "-m", "veltair.commands.timing.engine_process"]
PEERS = {"ort": [("onnxruntime", "fp32")], "openvino": [("openvino", "fp32"), ("openvino", "default")]}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    against = "engines, of ort and openvino (default: those of both that run the model)"
    parser.add_argument("--against", help=against)
    parser.add_argument("--threads", default="1,2", help="thread counts (default: 1,2)")
    parser.add_argument("--batch", type=int, default=1, help="rows, for a model of dynamic batch (default: 1)")
    further = "a further artifact of the same model, of another precision; may be repeated"
    parser.add_argument("--also", type=Path, action="append", default=[], metavar="DIR", help=further)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"turns of each engine (default: {ROUNDS})")
    parser.add_argument("--json", action="store_true")
    parser.epilog = """\
examples:
  veltair bench artifacts/resnet50 resnet50.onnx
  veltair bench artifacts/resnet50 resnet50.onnx --against ort --threads 2 --batch 4"""


def run(args: argparse.Namespace) -> int:
    threads = _threads(args.threads)
    engines = [name for name in (",".join(PEERS) if args.against is None else args.against).split(",") if name]
    for name in engines:
        if name not in PEERS:
            raise ConfigError(f"--against {name}: expected {' or '.join(PEERS)}")
    if "openvino" in engines and importlib.util.find_spec("openvino") is None:
        raise ConfigError("OpenVINO is not installed: pip install 'veltair[bench]'")
    if args.rounds < 1:
        raise ConfigError(f"--rounds {args.rounds}: expected at least 1")
    artifacts = [load_artifact(path) for path in (args.artifact, *args.also)]
    for artifact in artifacts:
        if not 1 <= args.batch <= artifact.manifest.max_batch:
            raise ConfigError(f"--batch {args.batch}: {artifact.path} takes 1 … {artifact.manifest.max_batch}")
    if not args.model.is_file():
        raise ModelError(f"{args.model}: no such file")
    digest = file_digest(args.model)
    for artifact in artifacts:  # times of two models beside each other would say nothing
        if artifact.manifest.source_digest != digest:
            raise ModelError(f"{args.model}: is not the file that {artifact.path} was compiled from")
    known = {port.name for port in artifacts[0].manifest.inputs}
    # Inputs that the artifact makes from raw features.
    ready_made = [name for name in read_onnx_inputs(args.model) if name not in known]
    rows, left_out = list[dict[str, Any]](), dict[str, str]()
    for count in threads:  # one count after the other: large models would not fit into memory twice as often
        tasks = _tasks(artifacts, args.model, engines, count, args.batch)
        medians = _time(tasks, args.rounds, left_out, quiet=args.json, all_of_them=args.against is not None)
        rows += [
            {**{key: task[key] for key in ("engine", "precision", "threads")}, "median_ms": round(median, 4)}
            for task, median in zip(tasks, medians, strict=True)
        ]
    if args.json:
        facts = {"model": artifacts[0].manifest.model, "batch": args.batch, "ready_made_for_peers": ready_made}
        facts |= {"rows": rows, "left_out": left_out, "environment": dataclasses.asdict(describe_environment())}
        print(json.dumps(facts))
    else:
        note = f"; peers are given {', '.join(ready_made)} ready made" if ready_made and engines else ""
        _show(artifacts[0].manifest.model + note, rows)
        for why in left_out.values():
            print(why)
    return 0


def _threads(text: str) -> list[int]:
    cores = len(usable_machine().cores)
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--threads {text}: expected numbers with commas between, such as 1,2") from None
    if any(not 1 <= count <= cores for count in counts):
        raise ConfigError(f"--threads {text}: this machine offers 1 … {cores}")
    return counts


def _tasks(
    artifacts: Sequence[Artifact], model: Path, engines: Sequence[str], threads: int, batch: int
) -> list[dict[str, Any]]:
    """The argument of each engine process."""
    ours = [("veltair", a.manifest.precision, str(a.path)) for a in artifacts]
    peers = [(*peer, str(artifacts[0].path)) for name in engines for peer in PEERS[name]]
    return [
        {"engine": engine, "precision": precision, "artifact": artifact}
        | {"threads": threads, "batch": batch, "model": str(model)}
        for engine, precision, artifact in (*ours, *peers)
    ]


def _time(
    tasks: list[dict[str, Any]], rounds: int, left_out: dict[str, str], *, quiet: bool, all_of_them: bool
) -> list[float]:
    """Milliseconds of each task. A peer that does not start is taken out of them, and told in `left_out`.

    all_of_them: none is. Raises NotStartedError, VeltairError.
    """
    while True:
        names = [f"{task['engine']} on {task['threads']} threads" for task in tasks]
        commands = [[*ENGINE_PROCESS, json.dumps(task)] for task in tasks]
        try:
            return run_alternately(list(zip(names, commands, strict=True)), rounds, quiet)
        except NotStartedError as error:
            task = tasks[names.index(error.name)]
            if all_of_them or task["engine"] == "veltair":
                raise
            left_out[error.name] = str(error)
            tasks[:] = [other for other in tasks if other["engine"] != task["engine"]]


def _show(title: str, rows: list[dict[str, Any]]) -> None:
    ours = dict.fromkeys(row["precision"] for row in rows if row["engine"] == "veltair")
    names = Column("engine", is_name=True), Column("precision", is_name=True)
    ratios = [Column(f"veltair {precision}\n/ engine", rank=1) for precision in ours]
    table = ResultTable((*names, Column("threads"), Column("median\nms"), *ratios), title)
    times = {(row["threads"], row["precision"]): row["median_ms"] for row in rows if row["engine"] == "veltair"}
    for row in rows:
        found = [f"{times[row['threads'], precision] / row['median_ms']:.2f}" for precision in ours]
        if row["engine"] == "veltair":
            found = [""] * len(ours)
        table.add(row["engine"], row["precision"], str(row["threads"]), f"{row['median_ms']:.3f}", *found)
    table.print(result_console())
