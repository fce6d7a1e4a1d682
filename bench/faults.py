"""The suite of faults, as often as promised: `python -m bench.faults [-k EXPRESSION] [--again] [--page]`.

How long it takes until all is back after a kill, by process and phase, with three models of real size beside:
`python -m bench.faults -k killed_process --models demo/artifacts`. A row that had been measured before keeps the times
of before, and prints both.

Runs `tests/faults` with the number of rounds of `full`, which takes hours; each row is kept in
`bench/results/faults.json` as soon as it has ended, so a run that was interrupted goes on where it was: rows that this
version has passed in full are left out, unless asked for with `--again`. `--share 0.05` runs a twentieth of the rounds,
to try a row, and keeps nothing; nor is a test kept that has no rounds. `docs/promises.md` is written from that file
(`--page` writes it alone).
"""

from __future__ import annotations

import argparse
import hashlib
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
CODE = ("compiler", "profiles", "scheduler", "server", "veltair", "tests/faults", "tests/server")
TEXT = """# What it promises, and how it is tested

<!-- Written by `python -m bench.faults --page` from bench/results/faults.json. Edit that module, not this page. -->

Each row breaks a daemon that serves real queries over HTTP and gRPC, or the compiler, again and again. A round fails
where an answer is wrong by one bit, an accepted query gets none, a process or shared memory is left, or the daemon does
not come back. `make test` runs a few rounds of each; `python -m bench.faults` runs as many as stand here, and a row
ends with the first that fails. Back after: until all processes are there again and hold all models, at the median and
at most, on the machine of the row; with a star while models of real size were served too.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-k", metavar="EXPRESSION", help="only rows whose names match, as pytest's -k")
    parser.add_argument("--again", action="store_true", help="also rows that this version has passed")
    parser.add_argument("--share", type=float, default=1.0, metavar="PART", help="of the rounds; keeps nothing")
    parser.add_argument(
        "--models", type=Path, metavar="DIR", help="artifacts that are served too where times are taken"
    )
    parser.add_argument("--page", action="store_true", help="write the page alone")
    args = parser.parse_args()
    failed = 0
    if not args.page:
        version = project_version()
        for row in names(args.k):
            if not args.again and args.share == 1 and is_passed(row, version):
                continue
            found = measure(row, version, args.share, args.models)
            found["before_s"] = before(read().get(short(row), {}), found)
            if args.share == 1 and found["outcome"] != "skipped" and found["tried"]:
                FOUND.write_text(json.dumps(read() | {short(row): found}, indent=1) + "\n", "utf-8")
            failed += found["outcome"] != "passed"
            took = f"{found['tried']:>6} rounds  {found['seconds']:>7.0f} s  {row}"
            back = f"  back after {times(found['recovery_s'])} s" if found["recovery_s"] else ""
            earlier = f" (before: {times(found['before_s'])})" if found["before_s"] else ""
            print(f"{found['outcome']:>7}  {took}{back}{earlier}", flush=True)
    PAGE.write_text(page(), "utf-8")
    return 1 if failed else 0


def short(row: str) -> str:
    """The row's name in the results."""
    return row.partition("::")[2]


def is_passed(row: str, version: str) -> bool:
    found = read().get(short(row), {})
    return found.get("outcome") == "passed" and found.get("version") == version


def project_version() -> str:
    """What is measured: a digest of the code and of the suite, since the number stays the same for long."""
    digest = hashlib.sha256()
    for folder in CODE:
        for file in sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".c", ".h")):
            digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def names(expression: str | None) -> list[str]:
    """The rows, as pytest names them."""
    chosen = ["-k", expression] if expression else []
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *chosen, str(TESTS)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


def before(kept: Any, found: Any) -> Any:
    """The recovery of the version before, with the same models; None where it is not known."""
    if kept.get("beside", "") != found["beside"]:
        return None
    return kept.get("before_s") if kept.get("version") == found["version"] else kept.get("recovery_s")


def times(recovery_s: Any) -> str:
    return f"{recovery_s['median']:.1f}, at most {recovery_s['most']:.1f}"


def measure(row: str, version: str, share: float, models: Path | None) -> dict[str, Any]:
    """Run a row. Returns what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", row, f"--junitxml={report}", "-o", "junit_family=xunit1"]
        own = {"VELTAIR_FAULTS": "full", "VELTAIR_FAULTS_SHARE": str(share)}
        if models is not None:
            own["VELTAIR_FAULTS_MODELS"] = str(models.resolve(strict=True))
        subprocess.run(command, cwd=ROOT, env=os.environ | own, stdout=subprocess.DEVNULL)
        [case] = ET.parse(report).iter("testcase")
    told = {entry.get("name"): entry.get("value") for entry in case.iter("property")}
    faults = [*case.iter("failure"), *case.iter("error")]
    for fault in faults:
        print(fault.text, file=sys.stderr)
    recovery = [float(seconds) for seconds in (told.get("recovery") or "").split()]
    return {
        "promise": told.get("promise", ""),
        "outcome": "failed" if faults else "skipped" if case.find("skipped") is not None else "passed",
        "tried": int(told.get("tried") or 0),
        "recovery_s": dict(zip(("median", "most"), recovery, strict=True)) if recovery else None,
        "beside": told.get("beside", ""),
        "seconds": round(float(case.get("time") or 0)),
        "version": version,
        "environment": asdict(describe_environment()),
    }


def read() -> dict[str, Any]:
    kept: dict[str, Any] = json.loads(FOUND.read_text("utf-8")) if FOUND.exists() else {}
    return kept


def page() -> str:
    """The page, from the results."""
    rows = read()
    promises: dict[str, list[tuple[str, Any]]] = {}
    for name, found in rows.items():
        promises.setdefault(found["promise"], []).append((name.partition("[")[2].rstrip("]") or "-", found))
    machines = list(dict.fromkeys(machine(found) for found in rows.values()))
    lines = [
        [
            promise if not at else "",
            case,
            found["tried"],
            int(found["outcome"] == "failed"),
            recovery(found),
            found["seconds"],
            machines.index(machine(found)) + 1,
        ]
        for promise, cases in promises.items()
        for at, (case, found) in enumerate(cases)
    ]
    table = markdown_table(["promise", "case", "tried", "failed", "back after, s", "took, s", "machine"], lines)
    named = "\n".join(f"{number}. {name}" for number, name in enumerate(machines, 1))
    return f"{TEXT}\n{table}\n\nMachines:\n\n{named}\n"


def machine(found: Any) -> str:
    """Where a row was measured."""
    where = found["environment"]
    memory = f"{where['memory_bytes'] / 2**30:.0f} GB"
    return f"{where['cpu']}, {where['cores']} cores, {memory}, Linux {where['kernel']}, Python {where['python']}"


def recovery(found: Any) -> str:
    """The cell of the page that tells how long recovery took."""
    if not found.get("recovery_s"):
        return ""
    earlier = f" (before: {times(found['before_s'])})" if found.get("before_s") else ""
    return f"{times(found['recovery_s'])}{earlier}{' *' if found.get('beside') else ''}"


if __name__ == "__main__":
    raise SystemExit(main())
