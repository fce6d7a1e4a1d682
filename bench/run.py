"""Measures every committed result again, then writes the pages, tables and figures that are made from the results.

    python -m bench.run [--only PART …] [--list] [--triton-python PATH] [--tensorflow PATH] [--torch PATH]
        [--export-python PATH] [--results DIR] [--work DIR]

Parts: see `bench.parts`; `--list` prints their commands and measures nothing. `way`, `loads`, `overload` and
`short-floods` need the demo's artifacts (`make demo` first); the other parts build and compile the models that they
need. Peers that want a Python of their own (Triton, TensorFlow, torch with FBGEMM) take part where an option says which
has them. Run it on a machine that does nothing else: the mixes take an hour each on 2 cores, `faults` and `fuzz` a
night.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.parts import PARTS, Command, Settings
from bench.paths import RESULTS, ROOT
from bench.serving import triton

PAGES: Sequence[Command] = (("bench.tables",), ("bench.readme_table",), ("bench.serving.peak_figure",))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help="default: all")
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of this machine's results")
    parser.add_argument("--work", type=Path, default=ROOT / ".build" / "bench", help="where benches keep their kernels")
    parser.add_argument("--tensorflow", metavar="PATH", help="a Python with TensorFlow")
    parser.add_argument("--torch", metavar="PATH", help="a Python with torch and fbgemm-gpu-cpu")
    parser.add_argument("--export-python", metavar="PATH", help="a Python with bench/coverage/requirements.txt")
    triton.add_argument(parser)
    args = parser.parse_args()
    pythons = args.triton_python, args.tensorflow, args.torch, args.export_python
    settings = Settings(args.results.resolve(), args.work.resolve(), *pythons)
    if not args.list:
        settings.results.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for name in args.only:
        print(f"== {name}", flush=True)
        for command in PARTS[name].commands(settings):
            failed += [name] if not _run(command, args.list) and name not in failed else []
    for command in PAGES:
        _run(command, args.list)
    if failed:
        print(f"did not reach their bars, or did not run: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(command: Command, only_print: bool) -> bool:
    """Whether the bench ended well; one that missed its bar has written its results all the same."""
    print(f"python -m {shlex.join(command)}", flush=True)
    return only_print or subprocess.run([sys.executable, "-m", *command], check=False, cwd=ROOT).returncode == 0


if __name__ == "__main__":
    raise SystemExit(main())
