"""The suite of faults, as often as promised: `python -m bench.faults [-k EXPRESSION] [--page]`.

Runs `tests/faults` with the number of rounds of `full`, which takes hours; each row is kept in
`bench/results/faults.json` as soon as it has ended, so a run that is interrupted goes on with `-k`, and rows of other
runs stay. `docs/promises.md` is written from that file (`--page` writes it alone).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.part_tables import markdown_table
from bench.paths import RESULTS, ROOT
from veltair.machine.environment import describe_environment

FOUND = RESULTS / "faults.json"
PAGE = ROOT / "docs" / "promises.md"
TESTS = ROOT / "tests" / "faults"
TEXT = """# What it promises, and how it is tested

<!-- Written by `python -m bench.faults --page` from bench/results/faults.json. Edit that module, not this page. -->

Each row breaks a daemon that serves real queries over HTTP and gRPC, again and again. A round fails where an answer is
wrong by one bit, an accepted query gets none, a process or shared memory is left, or the daemon does not come back.
`make test` runs a few rounds of each; `python -m bench.faults` runs as many as stand here.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", metavar="EXPRESSION", help="only rows whose names match, as pytest's -k")
    parser.add_argument("--page", action="store_true", help="write the page alone")
    args = parser.parse_args()
    failed = 0
    if not args.page:
        for row in names(args.k):
            found = measure(row)
            failed += found["outcome"] != "passed"
            print(f"{found['outcome']:>7}  {found['tried']:>6} rounds  {found['seconds']:>7.0f} s  {row}", flush=True)
    PAGE.write_text(page(), "utf-8")
    return 1 if failed else 0


def names(expression: str | None) -> list[str]:
    """The rows, as pytest names them."""
    chosen = ["-k", expression] if expression else []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *chosen, str(TESTS)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


def measure(row: str) -> dict[str, Any]:
    """Run a row, and keep what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", row, f"--junitxml={report}", "-o", "junit_family=xunit1"]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"VELTAIR_FAULTS": "full"}, stdout=subprocess.DEVNULL)
        [case] = ET.parse(report).iter("testcase")
    told = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    broken = case.find("failure") is not None or case.find("error") is not None
    found = {
        "promise": told.get("promise", ""),
        "outcome": "failed" if broken else "skipped" if case.find("skipped") is not None else "passed",
        "tried": int(told.get("tried") or 0),
        "seconds": round(float(case.get("time") or 0)),
        "environment": asdict(describe_environment()),
    }
    kept = read() | {row.partition("::")[2]: found}
    FOUND.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    return found


def read() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(FOUND.read_text("utf-8")) if FOUND.exists() else {}
    return kept


def page() -> str:
    """The page, from the results."""
    rows = read()
    promises: dict[str, list[tuple[str, Any]]] = {}
    for name, found in rows.items():
        promises.setdefault(found["promise"], []).append((name.partition("[")[2].rstrip("]") or "-", found))
    lines = [
        [promise if not at else "", case, found["tried"], found["outcome"], found["seconds"]]
        for promise, cases in promises.items()
        for at, (case, found) in enumerate(cases)
    ]
    machines = sorted({f"{f['environment']['cpu']}, {f['environment']['cores']} cores" for f in rows.values()})
    table = markdown_table(["promise", "case", "rounds", "outcome", "seconds"], lines)
    return f"{TEXT}\n{table}\n\nMeasured on {'; '.join(machines)}.\n"


if __name__ == "__main__":
    raise SystemExit(main())
