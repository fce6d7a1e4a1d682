"""One network through the command line of veltair: compiled, verified and, where asked, timed."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.paths import CLI, ROOT
from veltair.profiles.artifact.artifact_folder import Artifact, load_artifact

KINDS = {"stitched": "stitched", "generic": "generic", "onnxruntime": "onnxruntime"}  # other operators are `own`
QUICK = ("--levels", "model", "--max-batch", "3")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a command may take: seconds, and bytes of memory of its own."""

    seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `output`: what it printed; `fault`: None, or in a line what went wrong.

    cpu_seconds: of the command and its children, user and system.
    """

    code: int
    output: str
    fault: str | None
    seconds: float
    cpu_seconds: float


def try_network(onnx: Path, artifact: Path, limits: Limits, *, quick: bool, times: bool) -> dict[str, Any]:
    """What `bench/results/coverage.json` keeps of a network: whether it compiles and agrees, seconds, layers by kind.

    quick: with less that is timed while it is compiled, and without the seconds, where they say nothing. Keys are
    absent where a run did not come so far.
    """
    compiled = _compile(onnx, artifact, "fp32", limits, quick)
    found: dict[str, Any] = {"compiles": compiled.code == 0, "cpu_seconds": round(compiled.cpu_seconds, 1)}
    if not quick:
        found["seconds"] = round(compiled.seconds, 1)
    if compiled.code:
        return found | {"fault": compiled.fault}
    found |= layer_counts(load_artifact(artifact))
    verified = run_command(("verify", str(artifact), str(onnx), "--json"), limits)
    found["agrees"] = verified.code == 0
    if verified.code == 1 and verified.output.startswith("{"):
        found["fault"] = "; ".join(json.loads(verified.output)["mismatches"][:3])
    elif verified.code:
        found["fault"] = verified.fault
    if times and found["agrees"]:
        found |= _times(onnx, artifact, limits, quick)
    return found


def _compile(onnx: Path, artifact: Path, precision: str, limits: Limits, quick: bool) -> Ended:
    options = ("--trials", "0", "--precision", precision, "--json", *(QUICK if quick else ()))
    return run_command(("compile", str(onnx), "--out", str(artifact), *options), limits)


def _times(onnx: Path, artifact: Path, limits: Limits, quick: bool) -> dict[str, Any]:
    """Milliseconds beside the peers, in bfloat16 as well; `not_in_bf16` says why that is left out, if it is."""
    narrow = artifact.with_name(f"{artifact.name}-bf16")
    compiled = _compile(onnx, narrow, "bf16", limits, quick)
    also = () if compiled.code else ("--also", str(narrow))
    timed = run_command(("bench", str(artifact), str(onnx), *also, "--json"), limits)
    found: dict[str, Any] = {"not_in_bf16": compiled.fault} if compiled.code else {}
    if timed.code == 0:
        found["times"] = json.loads(timed.output)["rows"]
    return found


def layer_counts(artifact: Artifact) -> dict[str, Any]:
    """Layers by kind, and why ONNX Runtime runs some."""
    layers = artifact.manifest.layers
    kinds = Counter(KINDS.get(layer.op, "own") for layer in layers)
    notes = [layer.note for layer in layers if layer.op == "onnxruntime"]
    return {"layers": dict(sorted(kinds.items())), **({"left_to_onnxruntime": notes} if notes else {})}


def run_command(arguments: Sequence[str], limits: Limits) -> Ended:
    """Run a command of veltair, and end it with all its children where it takes too long."""
    begin, cpu_begin = time.monotonic(), _cpu_seconds_of_children()
    process = subprocess.Popen(
        [*CLI, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes)),
    )
    try:
        output, errors = process.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        fault, output = f"takes over {limits.seconds:g} s", ""
        return Ended(-signal.SIGKILL, output, fault, time.monotonic() - begin, _cpu_seconds_of_children() - cpu_begin)
    fault = None
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.strip()] or ["no message"]
        crashed = process.returncode < 0 or any(line.startswith("Traceback") for line in lines)
        fault = f"crashes ({process.returncode}): {lines[-1]}" if crashed else lines[-1]
    spent = time.monotonic() - begin, _cpu_seconds_of_children() - cpu_begin
    return Ended(process.returncode, output, fault[:500] if fault else None, *spent)


def _cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
