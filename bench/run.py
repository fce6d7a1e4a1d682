"""Every committed result, measured again: `python bench/run.py`; the README's tables: `python bench/run.py --tables`.

The daemon's models and configuration are the demo's (`make demo` first); `kernels.py` writes the networks that it
compares. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import kernels
import mix

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DEMO = ROOT / "demo"
CLI = [sys.executable, "-m", "veltair.cli"]
POLICIES = ("veltair-full", "fcfs")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--tables", action="store_true", help="print the tables of the committed results, measure nothing"
    )
    parser.add_argument("--only", choices=("kernels", "overhead", "scheduler", "peak"))
    args = parser.parse_args()
    if args.tables:
        print(tables())
        return 0
    RESULTS.mkdir(exist_ok=True)
    for name, measure in (("kernels", networks), ("overhead", overhead), ("scheduler", scheduler), ("peak", peak)):
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


def overhead() -> None:
    script = str(ROOT / "bench" / "overhead.py")
    save("overhead", output(sys.executable, script, str(DEMO / "artifacts" / "dlrm")))


def scheduler() -> None:
    save("scheduler", output(sys.executable, str(ROOT / "bench" / "scheduler.py")))


def peak() -> None:
    """The greatest load of the demo's mix with every tenant's QoS held, by policy."""
    text = (ROOT / "scenarios" / "demo.toml").read_text("utf-8")
    scenario = re.sub(r"(?m)^duration_s = .*", "duration_s = 10.0", text)
    for policy in POLICIES:
        save(f"peak-{policy}", json.dumps(mix.peak([policy], scenario, DEMO / "serve.toml", seeds=3)))


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def _cells(numbers: Iterable[float]) -> str:
    return " | ".join(f"{number:.0f}" for number in numbers)


def tables() -> str:
    """Markdown."""
    lines = [kernels.tables(), ""]
    peaks = [read(f"peak-{policy}") for policy in POLICIES]
    lines += [
        "| the demo's mix over gRPC, load generator on the same 2 cores | " + " | ".join(POLICIES) + " |",
        "| --- |" + " --- |" * len(POLICIES),
        f"| peak QPS, 95 % of every tenant's queries in target | {_cells(p['peak_qps'] for p in peaks)} |",
    ]
    for i, tenant in enumerate(peaks[0]["tenants"]):
        at = [p["tenants"][i] for p in peaks]
        cells = [f"{t['qps']:.0f} QPS, p95 {t['p95_ms']:.0f} ms, {t['qos_rate'] * 100:.1f} %" for t in at]
        lines.append(f"| {tenant['name']} (target {tenant['target_ms']:g} ms) | " + " | ".join(cells) + " |")
    small, decisions = read("overhead"), read("scheduler")
    lines += [
        "",
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
