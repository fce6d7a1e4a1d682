"""Tables of single parts as Markdown, for `bench.tables`: one function for each result file, which it reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from bench.paths import RESULTS

LOWER_LIMIT = {"veltair": "veltair", "fbgemm": "FBGEMM", "torch": "torch", "limit": "limit"}
COLUMN_SETS = {
    "recom-e": "RECom E's 1000 columns",
    "history": "12 history strings a row",
    "split": "split and hashed alone",
}


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def lookups() -> str:
    tables = _read("ember")["tables"]
    rows = []
    for name, found in tables.items():
        if isinstance(found, dict) and "gb_s" in found:
            shape, _, threads = name.rpartition(", ")
            speeds = [f"{found['gb_s'][key]:.1f}" for key in LOWER_LIMIT]
            over = found["gb_s"]["veltair"] / found["gb_s"]["fbgemm"]
            rows.append([shape, threads.split()[0], *speeds, f"{over:.2f}x", f"{found['of_limit']:.0%}"])
    return markdown_table(["GB/s", "threads", *LOWER_LIMIT.values(), "over FBGEMM", "of the limit"], rows)


def storages() -> str:
    found = _read("ember")["storages"]
    rows = [
        [threads.split()[0], *(f"{value:.1f}" for value in found[threads].values())]
        for threads in found
        if threads != "shape"
    ]
    return markdown_table(["threads", "fp32", "fp16", "int8"], rows)


def fusions() -> str:
    rows = []
    for row in _read("atrec")["rows"]:
        ours = min(row["fused_us"], row.get("hoisted_us", row["fused_us"]))
        factors = [f"{row[key] / ours:.1f}x" for key in ("unfused_us", "onnxruntime_us")]
        rows.append([row["kind"], row["case"], row["threads"], f"{ours / 1000:.3f}", *factors])
    return markdown_table(["fusion", "subgraph", "threads", "ms", "unfused", "ONNX Runtime"], rows)


def feature_columns() -> str:
    found = _read("columns")
    rows = []
    for key, title in COLUMN_SETS.items():
        for batch, times in found[key].items():
            ours = times["veltair_ms"]
            factors = [f"{times[k] / ours:.1f}x" if k in times else "" for k in ("onnxruntime_ms", "tensorflow_ms")]
            rows.append([title, batch, f"{ours:.2f}", *factors])
    return markdown_table(["columns", "rows", "ms", "ONNX Runtime", "TensorFlow"], rows)


def stitching() -> str:
    rows, gains = [], []
    for row in _read("stitching")["rows"]:
        others = [row["plain_us"], row["dlight_us"]]
        gains.append(min(others) / row["stitched_us"])
        cells = [f"{row['stitched_us']:.1f}", *(f"{time:.1f}" for time in others), f"{gains[-1]:.1f}x"]
        rows.append([row["subgraph"], row["threads"], *cells])
    table = markdown_table(["us", "threads", "stitched", "plain", "dlight", "over the better"], rows)
    return f"{table}\n\nGeometric mean over the better of the two: {geometric_mean(gains):.1f}x."


def layer_launch() -> str:
    rows = []
    for cores, found in _read("blocks")["cores"].items():
        for key, ways in found.items():
            title = key.removeprefix("us_").replace("_", " ")
            rows.append([title, cores, *(f"{max(value, 0.0):.2f}" for value in ways.values())])
    return markdown_table(["us", "cores", "call a layer, TVM's pool", "call a layer", "call a block"], rows)


def scheduling() -> str:
    rows = [
        [
            row["policy"],
            row["load"],
            f"{row['median_in_flight']:.0f}",
            row["median_us"],
            row["p99_us"],
            row["decision_p99_us"],
            row["us_per_query"],
        ]
        for row in _read("scheduler")["rows"]
    ]
    header = ["policy", "load", "in flight", "event, p50", "event, p99", "decision, p99", "query"]
    return markdown_table(header, rows)


def simulator() -> str:
    rows = [
        [
            row["policy"],
            f"{row['offered_qps']:.0f}",
            row["blocks_per_query"],
            f"{row['first_queries_per_s']:,}",
            f"{row['queries_per_s']:,}",
        ]
        for row in _read("simulator")["rows"]
    ]
    return markdown_table(["policy", "offered QPS", "blocks a query", "first run", "queries a second"], rows)


def routers() -> str:
    rows = [
        [
            row["router"],
            row["machines_that_die"],
            f"{row['in_time'] * 100:.1f} %",
            f"{row['worst_in_time'] * 100:.1f} % ({row['worst_tenant']})",
            f"{row['refused']:,}",
            f"{row['lost']:,}",
            f"{row['offered']:,}",
        ]
        for row in _read("routers")["rows"]
    ]
    header = ["router", "machines that die", "in time", "worst tenant", "refused", "lost", "queries"]
    return markdown_table(header, rows)


def recom_e_gains(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many times faster RECom's E is in bfloat16 than its peers in fp32."""
    times = {(row["batch"], row["threads"], row["engine"], row["precision"], row.get("only")): row for row in rows}

    def ms(batch: int, threads: int, engine: str, precision: str = "fp32", only: str | None = None) -> float:
        return float(times[batch, threads, engine, precision, only]["median_ms"])

    cells = []
    for batch in sorted({row["batch"] for row in rows}):
        row = [str(batch)]
        for threads in (1, 2):
            ours = ms(batch, threads, "veltair", "bf16")
            towers = ms(batch, threads, "onnxruntime", only="towers")
            both = ms(batch, threads, "tensorflow", only="columns") + towers
            row += [f"{ms(batch, threads, 'onnxruntime') / ours:.1f}x", f"{both / ours:.1f}x"]
        cells.append(row)
    header = ["RECom's E in bfloat16: rows"]
    for threads in ("1 thread", "2 threads"):
        header += [f"over ONNX Runtime, {threads}", f"over TensorFlow + ONNX Runtime, {threads}"]
    return markdown_table(header, cells)
