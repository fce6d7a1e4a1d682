"""A training step beside torch and FBGEMM: forward, backward, and the update.

    python -m bench.recsys.training_step --torch PYTHON [--json FILE]

DIEN at AtRec's widths (batch 512, histories of up to 50 items), on our operators, on torch's own, and on torch's with
FBGEMM's tables; and one table of a million rows alone (batch 512, bags of 100, dim 32). Tables are updated by row-wise
Adagrad in all. PYTHON has torch, and fbgemm_gpu if its CPU operator is to be measured; the kernels of ours are those of
this installation. Losses and updated rows are compared first. Steps per second, medians of turns, engines in turn, on
one thread and on all cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.paths import ROOT, result_path
from veltair.machine.environment import describe_environment
from veltair.machine.topology import usable_machine

TURNS = 15


def measure(python: str, threads: int, turns: int) -> dict[str, Any]:
    """Versions and steps per second of each engine on `threads` threads."""
    command = [python, "-m", "bench.recsys.training_step.timed_steps", str(threads), str(turns)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", required=True, help="a Python with torch, and fbgemm_gpu if that is to be a peer")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--json", type=result_path, help="where the rates go, with the environment")
    args = parser.parse_args(arguments)
    environment, versions, rates = describe_environment(), {}, {}
    for threads in sorted({1, len(usable_machine().cores)}):
        found = measure(args.torch, threads, args.turns)
        versions = found["versions"]
        for what, engines in found["steps_per_s"].items():
            rates[f"{what}, {threads} thread{'s' * (threads > 1)}"] = engines
            print(f"{what}, {threads} threads:", ", ".join(f"{e} {rate:.1f} steps/s" for e, rate in engines.items()))
    if args.json:
        result = {"environment": asdict(environment), "versions": versions, "steps_per_s": rates}
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
