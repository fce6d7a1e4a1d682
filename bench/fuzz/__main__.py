"""Coverage-guided fuzzing of what reads bytes of clients: `python -m bench.fuzz [TARGET …] [--inputs N] [--pack]`.

The targets in C are the drivers of the tests under clang's libFuzzer, with the sanitizers for addresses and undefined
behaviour (Debian's packages clang and libclang-rt-14-dev); the decoders in Python run under atheris. Each begins with
its kept inputs. What a run finds is merged to the fewest inputs that cover as much, and kept in `tests/fuzz`, where
`make test` tries it again; how many were run is added to `bench/results/fuzz.json`. A crash, a leak, or an input that
takes 10 s ends the run, and stands in `.build/fuzz`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any, NamedTuple

from bench.fuzz.corpus import path_of, read_inputs, write_inputs
from bench.paths import RESULTS, ROOT
from veltair.machine.environment import describe_environment

FOUND, WORK = RESULTS / "fuzz.json", ROOT / ".build" / "fuzz"
FLAGS = ["-std=c11", "-O1", "-g", "-DLIBFUZZER", "-pthread", "-fsanitize=fuzzer,address,undefined"]
FLAGS += ["-fno-sanitize-recover=all"]
HTTP2, WIRE = "veltair/grpc/native", "server/wire"
SLOWEST_S, MEMORY_MB = 10, 2048  # of one input, and of a run


class Target(NamedTuple):
    """A driver in C, what it is linked with, and the largest input in bytes."""

    driver: str
    folders: tuple[str, ...]
    most_bytes: int


TARGETS: dict[str, Target | None] = {
    "http2": Target("tests/veltair/grpc/native/session_fuzz.c", (HTTP2,), 4096),
    "http1": Target("tests/server/wire/http1_fuzz.c", (WIRE, HTTP2), 2048),
    "grpc": Target("tests/server/wire/grpc_fuzz.c", (WIRE, HTTP2), 1024),
    "decoders": None,  # in Python
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of each target")
    parser.add_argument("--pack", action="store_true", help="only merge and keep what an earlier run has found")
    args = parser.parse_args()
    if unknown := set(args.targets) - TARGETS.keys():
        parser.error(f"no target {', '.join(sorted(unknown))}")
    for name in args.targets or TARGETS:
        command, folder = build(name), WORK / name
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(read_inputs(name)):
            (folder / f"kept{i}").write_bytes(data)
        if not args.pack:
            found = run(name, command, args.inputs)
            print(f"{found['inputs']:>9} inputs  {found['seconds']:>6.0f} s  {name}: {found['outcome']}", flush=True)
            if found["outcome"] != "passed":
                return 1
        print(f"{keep(name, command):>9} bytes kept of {name}", flush=True)
    return 0


def build(name: str) -> list[str]:
    """The command that runs a target."""
    target = TARGETS[name]
    if target is None:
        return [sys.executable, "-m", "bench.fuzz.decoders"]
    WORK.mkdir(parents=True, exist_ok=True)
    program = WORK / f"{name}_target"
    clang = next((found for found in map(shutil.which, ("clang", "clang-14")) if found), None)
    if clang is None:
        raise SystemExit("bench.fuzz needs clang with libFuzzer: apt-get install clang libclang-rt-14-dev")
    sources = [ROOT / target.driver, *(file for each in target.folders for file in sorted((ROOT / each).glob("*.c")))]
    included = [f"-I{ROOT / folder}" for folder in target.folders]
    subprocess.run([clang, *FLAGS, *included, *map(str, sources), "-ldl", "-o", str(program)], check=True)
    return [str(program)]


def options(name: str) -> list[str]:
    target = TARGETS[name]
    limits = [f"-timeout={SLOWEST_S}", f"-rss_limit_mb={MEMORY_MB}", f"-artifact_prefix={WORK}/{name}-"]
    return [*limits, f"-max_len={target.most_bytes if target else 4096}"]


def run(name: str, command: list[str], inputs: int) -> dict[str, Any]:
    """Run so many inputs, and add them to the results of this target."""
    begin_s = time.monotonic()
    arguments = [str(WORK / name), f"-runs={inputs}", "-print_final_stats=1", *options(name)]
    ended = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, preexec_fn=_be_nice)
    (WORK / f"{name}.log").write_text(ended.stderr)
    counts = dict(re.findall(r"stat::(\w+):\s+(\d+)", ended.stderr))
    return add_result(
        name, int(counts.get("number_of_executed_units", 0)), time.monotonic() - begin_s, ended.returncode
    )


def add_result(name: str, inputs: int, seconds: float, code: int) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    before = results.get(name, {"inputs": 0, "seconds": 0.0})
    results[name] = {
        "inputs": before["inputs"] + inputs,
        "seconds": round(before["seconds"] + seconds),
        "outcome": "failed" if code else "passed",
        "environment": asdict(describe_environment()),
    }
    FOUND.write_text(json.dumps(results, indent=1) + "\n")
    return {"inputs": inputs, "seconds": seconds, "outcome": results[name]["outcome"]}


def keep(name: str, command: list[str]) -> int:
    """Keep the fewest inputs that cover as much as all. Returns their bytes."""
    merged = WORK / name
    if TARGETS[name]:  # a merge starts the program again for each bad input, which a module of Python is not
        merged = WORK / f"{name}.merged"
        shutil.rmtree(merged, ignore_errors=True)
        merged.mkdir()
        arguments = ["-merge=1", *options(name), str(merged), str(WORK / name)]
        subprocess.run([*command, *arguments], cwd=ROOT, check=True, capture_output=True, preexec_fn=_be_nice)
    write_inputs(name, [file.read_bytes() for file in merged.iterdir()])
    return path_of(name).stat().st_size


def _be_nice() -> None:
    os.nice(19)


if __name__ == "__main__":
    raise SystemExit(main())
