"""Every policy of the daemon on every workload, at 95 and at 99 %: is `veltair` the best one, and how sure is that?

    python -m bench.policies [--workloads light,medium,heavy,mix] [--percentiles 0.95,0.99] [--seeds 10]
        [--machine NAME] [--relax 1] [--queries 800] [--no-bounds]

A peak is searched for each seed by itself, so that the spread of ten peaks gives a confidence interval. Policies meet
the same arrivals: the gain of `veltair` over another is taken seed by seed. The others plan with the share of the
target that suits them best (`planned_share`), which other seeds choose. Results are kept as they come,
and a run that was interrupted continues (`bench.paper.experiment_cache`). The machine is the model of the paper's, or
another one; `--relax` multiplies the targets, for machines on which a query alone takes longer than the paper's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from bench.paper.experiment_cache import Call, run
from bench.paper.experiments import MACHINE, QUERIES
from bench.paths import RESULTS, result_path
from bench.policies import clairvoyant_bound, seed_peaks
from bench.policies.seed_peaks import OURS, Setting
from veltair.machine.environment import describe_environment
from veltair.scheduler.policies.by_name import POLICIES

RESAMPLES = 10_000  # of a bootstrap
LIKELY = (2.5, 97.5)  # percentiles of the resampled means: 95 %


def main() -> int:
    args = _arguments()
    asked = [
        ((workload, args.machine, args.relax, args.queries), policy, float(percentile))
        for workload in args.workloads
        for percentile in args.percentiles
        for policy in args.policies
    ]
    choices = run([(seed_peaks.choose_share, *each) for each in asked], "planned shares")
    calls: list[Call] = [
        (seed_peaks.peak_qps, *each, choice.planned_share, choice.scale, seed)
        for each, choice in zip(asked, choices, strict=True)
        for seed in range(1, args.seeds + 1)
    ]
    found = iter(run(calls, "peaks"))
    columns = [] if args.no_bounds else list(dict.fromkeys((setting, percentile) for setting, _, percentile in asked))
    limits = iter(
        run(
            [
                (clairvoyant_bound.clairvoyant_qps, *column, seed)
                for column in columns
                for seed in range(1, args.seeds + 1)
            ],
            "bounds",
        )
    )
    bounds = [
        {
            "machine": machine,
            "relaxed": relaxed,
            "queries": queries,
            "workload": workload,
            "percentile": percentile,
            "qps": [round(next(limits), 3) for _ in range(args.seeds)],
        }
        for (workload, machine, relaxed, queries), percentile in columns
    ]
    rows = [
        {
            "machine": machine,
            "relaxed": relaxed,
            "queries": queries,
            "workload": workload,
            "policy": policy,
            "percentile": percentile,
            "planned_share": choice.planned_share,
            "qps": [round(next(found), 3) for _ in range(args.seeds)],
        }
        for ((workload, machine, relaxed, queries), policy, percentile), choice in zip(asked, choices, strict=True)
    ]
    if args.out.exists():  # rows that were not asked for stay
        kept = json.loads(args.out.read_text("utf-8"))
        rows = [row for row in kept["rows"] if _key(row) not in asked] + rows
        bounds = [row for row in kept.get("bounds", ()) if _column(row) not in columns] + bounds
    result = {"environment": asdict(describe_environment()), "rows": rows, "bounds": bounds}
    args.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(tables(rows, bounds))
    return 0


def _key(row: Mapping[str, Any]) -> tuple[Setting, str, float]:
    setting, percentile = _column(row)
    return setting, row["policy"], percentile


def _column(row: Mapping[str, Any]) -> tuple[Setting, float]:
    return (row["workload"], row["machine"], row["relaxed"], row["queries"]), row["percentile"]


def tables(rows: Sequence[Mapping[str, Any]], bounds: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: one table for each machine model and number of queries."""
    runs = dict.fromkeys(_run(row) for row in rows)

    def of(run: tuple[str, float, int], given: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [row for row in given if _run(row) == run]

    return "\n\n".join(
        f"On `{machine}`, {queries:,} queries a run{f', {relaxed:g} times the targets' if relaxed != 1 else ''}:\n\n"
        + table(of((machine, relaxed, queries), rows), of((machine, relaxed, queries), bounds))
        for machine, relaxed, queries in runs
    )


def _run(row: Mapping[str, Any]) -> tuple[str, float, int]:
    return row["machine"], row["relaxed"], row["queries"]


def table(rows: Sequence[Mapping[str, Any]], bounds: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: each policy's mean peak with its 95 % interval, what `veltair` gains over the best other one, and how
    much of what no scheduler exceeds it reaches."""
    columns = list(dict.fromkeys((row["workload"], row["percentile"]) for row in rows))
    by_key = {(row["policy"], row["workload"], row["percentile"]): row["qps"] for row in rows}
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    head = ["peak QPS", *(f"{workload}, {percentile:.0%}" for workload, percentile in columns)]
    lines = [head, ["---"] * len(head)]
    lines += [[policy, *(_peak(by_key.get((policy, *column), ())) for column in columns)] for policy in policies]
    others = [{p: by_key[p, *column] for p in policies if p != OURS and (p, *column) in by_key} for column in columns]
    ours = [by_key.get((OURS, *column), ()) for column in columns]
    lines.append(["**`veltair` over the best other**", *(_gain(*each) for each in zip(ours, others, strict=True))])
    limits = {(row["workload"], row["percentile"]): row["qps"] for row in bounds}
    if not limits:
        return _lines(lines)
    lines.append(["no scheduler exceeds", *(_peak(limits.get(column, ())) for column in columns)])
    shares = [_share(mine, limits.get(column, ())) for mine, column in zip(ours, columns, strict=True)]
    lines.append(["**`veltair` of that**", *shares])
    return _lines(lines)


def _lines(cells: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean, by a bootstrap.

    >>> mean_interval([3.0, 3.0, 3.0])
    (3.0, 3.0)
    """
    drawn = np.random.default_rng(1).choice(np.asarray(values), (RESAMPLES, len(values)))
    low, high = np.percentile(drawn.mean(axis=1), LIKELY)
    return float(low), float(high)


def _peak(qps: Sequence[float]) -> str:
    if not qps:
        return ""
    low, high = mean_interval(qps)
    mean = statistics.fmean(qps)
    digits = 0 if mean >= 20 else 1
    return f"{mean:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def _gain(ours: Sequence[float], others: Mapping[str, Sequence[float]]) -> str:
    """The gain of the means; its interval comes from the differences seed by seed, which share their arrivals."""
    if not ours or not others:
        return ""
    best = max(others, key=lambda policy: statistics.fmean(others[policy]))
    mean = statistics.fmean(others[best])
    if not mean:
        return ""
    low, high = mean_interval([a - b for a, b in zip(ours, others[best], strict=True)])
    return f"{statistics.fmean(ours) / mean:.2f}x {best} ({1 + low / mean:.2f} to {1 + high / mean:.2f})"


def _share(ours: Sequence[float], limit: Sequence[float]) -> str:
    return f"{statistics.fmean(ours) / statistics.fmean(limit):.0%}" if ours and limit else ""


def _arguments() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def names(text: str) -> list[str]:
        return text.split(",")

    parser.add_argument("--workloads", type=names, default=["light", "medium", "heavy", "mix"])
    parser.add_argument("--percentiles", type=names, default=["0.95", "0.99"])
    parser.add_argument("--policies", type=names, default=list(POLICIES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--machine", default=MACHINE, help="the name of a machine model")
    parser.add_argument("--relax", type=float, default=1.0)
    parser.add_argument("--queries", type=int, default=QUERIES, help="of a run")
    parser.add_argument("--no-bounds", action="store_true", help="without what no scheduler exceeds")
    parser.add_argument("--out", type=result_path, default=RESULTS / "policies.json")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
