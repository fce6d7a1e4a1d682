"""Measures every committed result again, then writes `docs/measurements.md` from the results.

    python -m bench.run [--only kernels|recsys|scheduler|mixes|way] [--triton-python PATH]

`way` needs the demo's artifacts (`make demo` first); the other parts build and compile the models that they need.
Triton is among the peers where `--triton-python` says which Python has it. Run it on a machine that does nothing else:
the mixes take an hour each on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from bench import tables
from bench.paths import RESULTS, ROOT, SCENARIOS
from bench.serving import triton

MIXES = ("vision", "demo", "recsys")  # of scenarios/


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {
        "kernels": measure_networks,
        "recsys": measure_recommenders,
        "scheduler": measure_scheduler,
        "mixes": measure_mixes,
        "way": measure_way,
    }
    parser.add_argument("--only", choices=parts)
    triton.add_argument(parser)
    args = parser.parse_args()
    peers = ["--triton-python", args.triton_python] if args.triton_python else []
    RESULTS.mkdir(exist_ok=True)
    for name, measure in parts.items():
        if args.only in (None, name):
            print(f"== {name}", flush=True)
            measure(peers)
    tables.write()
    return 0


def measure_networks(_: Sequence[str]) -> None:
    _run("bench.kernels.networks", "--again")


def measure_recommenders(_: Sequence[str]) -> None:
    _run("bench.recsys.models", "--again")


def measure_scheduler(_: Sequence[str]) -> None:
    found = json.loads(_run("bench.paper.scheduling_cost", capture=True))
    (RESULTS / "scheduler.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


def measure_mixes(peers: Sequence[str]) -> None:
    """The greatest load of each mix with every tenant's QoS held, by this daemon and by its peers."""
    for name in MIXES:
        _run("bench.serving.mix", str(SCENARIOS / f"{name}.toml"), "--again", *peers)


def measure_way(peers: Sequence[str]) -> None:
    """What the way of a query costs, in this daemon and in its peer, and what the front side carries."""
    _run("bench.serving.way", "--again", *peers)
    _run("bench.serving.fronts")


def _run(module: str, *arguments: str, capture: bool = False) -> str:
    """Runs a bench; returns what it prints where that is captured."""
    command: Sequence[str] = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE if capture else None, text=True, cwd=ROOT)
    return done.stdout or ""


if __name__ == "__main__":
    raise SystemExit(main())
