"""Runs every micro bench and compares it with the committed result.

    python -m bench.micro.run [--save] [PYPERF OPTION …]

The results go to `.build/micro`, or with `--save` to `bench/results/micro`, where they are committed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.paths import RESULTS, ROOT

BENCHES = ("decisions", "headers", "kernels", "messages", "requests", "small_queries")
COMMITTED = RESULTS / "micro"
# Facts of one machine or one hour.
PRIVATE = {"hostname", "python_executable", "command", "boot_time", "uptime", "date", "python_config_args"}


def without_private(value: Any) -> Any:
    """pyperf's JSON without the metadata that says where, rather than on what, a bench ran."""
    if isinstance(value, dict):
        return {key: without_private(inner) for key, inner in value.items() if key not in PRIVATE}
    return [without_private(inner) for inner in value] if isinstance(value, list) else value


def strip(path: Path) -> None:
    """Rewrites a result file without its private metadata."""
    path.write_text(json.dumps(without_private(json.loads(path.read_text("utf-8")))) + "\n", "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="replace the committed results")
    args, options = parser.parse_known_args()
    folder = COMMITTED if args.save else ROOT / ".build" / "micro"
    folder.mkdir(parents=True, exist_ok=True)
    for bench in BENCHES:
        result, committed = folder / f"{bench}.json", COMMITTED / f"{bench}.json"
        result.unlink(missing_ok=True)  # pyperf writes to no file that exists
        print(f"== {bench}", flush=True)
        command = [sys.executable, "-m", f"bench.micro.{bench}", "-o", str(result), *options]
        subprocess.run(command, check=True, cwd=ROOT)
        strip(result)
        if committed != result and committed.exists():
            compare = [sys.executable, "-m", "pyperf", "compare_to", "--table", str(committed), str(result)]
            subprocess.run(compare, check=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
