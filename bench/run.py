"""Every committed result, measured again: `python bench/run.py`; the README's tables: `python bench/run.py --tables`.

`overhead` asks the demo's artifacts (`make demo` first); `kernels.py` and `mix.py` make the networks that they compare.
Run it on a machine that does nothing else: the mixes take an hour each on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernels
import mix
import recsys

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DEMO = ROOT / "demo"
CLI = [sys.executable, "-m", "veltair.cli"]
MIXES = ("vision", "demo", "recsys")  # of scenarios/


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", action="store_true", help="print the tables of the committed results, measure nothing"
    )
    parser.add_argument("--only", choices=("kernels", "recsys", "overhead", "scheduler", "mixes"))
    args = parser.parse_args()
    if args.tables:
        print(tables())
        return 0
    RESULTS.mkdir(exist_ok=True)
    parts = {"kernels": networks, "recsys": recommenders, "overhead": overhead, "scheduler": scheduler, "mixes": mixes}
    for name, measure in parts.items():
        if args.only in (None, name):
            print(f"== {name}", flush=True)
            measure()
    print(tables())
    return 0


def save(name: str, text: str) -> None:
    (RESULTS / f"{name}.json").write_text(json.dumps(json.loads(text), indent=1) + "\n", "utf-8")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def networks() -> None:
    """The zoo's networks beside their peers, all of them anew."""
    subprocess.run([sys.executable, str(ROOT / "bench" / "kernels.py"), "--again"], check=True)


def recommenders() -> None:
    subprocess.run([sys.executable, str(ROOT / "bench" / "recsys.py"), "--again"], check=True)


def overhead() -> None:
    script = str(ROOT / "bench" / "overhead.py")
    save("overhead", output(sys.executable, script, str(DEMO / "artifacts" / "dlrm")))


def scheduler() -> None:
    save("scheduler", output(sys.executable, str(ROOT / "bench" / "scheduler.py")))


def mixes() -> None:
    """The greatest load of each mix with every tenant's QoS held, by this daemon and by its peers."""
    for name in MIXES:
        scenario = ROOT / "scenarios" / f"{name}.toml"
        subprocess.run([sys.executable, str(ROOT / "bench" / "mix.py"), str(scenario), "--again"], check=True)


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def tables() -> str:
    """Markdown."""
    lines = [kernels.tables(), ""]
    for name in MIXES:
        if (RESULTS / f"mix-{name}.json").exists():
            lines += [f"scenarios/{name}.toml:", "", mix.table(read(f"mix-{name}")), ""]
    if (RESULTS / "recsys.json").exists():
        lines += [recsys.table(read("recsys")["models"]), ""]
    small, decisions = read("overhead"), read("scheduler")
    lines += [
        f"The daemon's overhead on a small DLRM query over gRPC (round trip minus execution): p50 "
        f"{small['overhead_p50_ms']:.2f} ms, p99 {small['overhead_p99_ms']:.2f} ms (bar: {small['bar_p50_ms']} ms).",
        "",
        "| scheduling at 64 cores | in flight | us a decision, p50 | p99 | us a query |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {r['policy']}, load {r['load']} | {r['median_in_flight']:.0f} | "
            f"{r['median_us']} | {r['p99_us']} | {r['us_per_query']} |"
            for r in decisions["rows"]
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
