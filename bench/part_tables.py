"""Tables of single parts as Markdown, for `bench.tables`: one function for each result file, which it reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from bench.at_once import fairest_ms
from bench.recsys.embedding_tables import SHAPES
from bench.section import read

GRAPH_PEERS = {
    "torch_csr": "torch's sparse CSR",
    "torch_geometric": "PyTorch Geometric",
    "torch_geometric_csr": "PyTorch Geometric, CSR",
}
LOOKUP_PEERS = {"fbgemm": "FBGEMM", "torch": "torch"}
COLUMN_SETS = {
    "recom-e": "RECom E's 1000 columns",
    "history": "12 history strings a row",
    "split": "split and hashed alone",
}

LEFT_OUT = {
    "safety": "with safety steps",
    "reductions": "with reductions",
    "fused": "a kernel a column",
    "merged": "features in buffers of their own",
    "all": "all four",
}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def lookups(measured: Mapping[str, Any]) -> str:
    tables = measured["tables"]
    rows = []
    for name, found in tables.items():
        if isinstance(found, dict) and "gb_s" in found:
            shape, _, threads = name.rpartition(", ")
            ms = found["ms"]
            on_one = tables[f"{shape}, 1 threads"]["ms"]
            peers = {key: fairest_ms(on_one[key], ms[key], ms.get(f"{key}_at_once")) for key in LOOKUP_PEERS}
            moved = ms["veltair"] * found["gb_s"]["veltair"]  # MB
            speeds = [moved / value for value in (ms["veltair"], *peers.values(), ms["rows_read"])]
            factors = [*(f"{peer / ms['veltair']:.2f}x" for peer in peers.values()), f"{found['over_rows_read']:.2f}x"]
            rows.append([shape, threads.split()[0], *(f"{speed:.1f}" for speed in speeds), *factors])
    names = ["veltair", *LOOKUP_PEERS.values(), "rows only read"]
    table = markdown_table(["GB/s", "threads", *names, *(f"over {name}" for name in names[1:])], rows)
    share = tables["bytes_in_large_pages"] / tables["bytes"]
    return f"{table}\n\n{share:.0%} of the tables lay in pages of 2 MB."


def storages(measured: Mapping[str, Any]) -> str:
    """Narrower rows against the faster of the two fp32 figures of the same shape in the file."""
    found, tables = measured["storages"], measured["tables"]
    rows = []
    for threads in (name for name in found if name.endswith(" threads")):
        ms = dict(found[threads])
        ms["fp32"] = min(ms["fp32"], tables[f"{next(iter(SHAPES))}, {threads}"]["ms"]["veltair"])
        times = [f"{value:.1f}" for value in ms.values()]
        rows.append([threads.split()[0], *times, *(f"{ms['fp32'] / ms[key]:.2f}x" for key in ("fp16", "int8"))])
    return markdown_table(["threads", "fp32", "fp16", "int8", "fp16's gain", "int8's gain"], rows)


def fusions(found: Mapping[str, Any]) -> str:
    rows = []
    for row in found["rows"]:
        ours = min(row["fused_us"], row.get("hoisted_us", row["fused_us"]))
        keys = ("unfused_us", "onnxruntime_us", "scatter_add_us", "bincount_us", "tensorflow_us")
        factors = [f"{row[key] / ours:.1f}x" if key in row else "" for key in keys]
        rows.append([row["kind"], row["case"], row["threads"], f"{ours / 1000:.3f}", *factors])
    peers = ["unfused", "ONNX Runtime", "scatter-add", "bincount", "TensorFlow"]
    return markdown_table(["fusion", "subgraph", "threads", "ms", *peers], rows)


def training_steps(found: Mapping[str, Any]) -> str:
    rows = []
    for step, engines in found["steps_per_s"].items():
        rates = [f"{engines[name]:,.1f}" if name in engines else "" for name in ("veltair", "torch", "fbgemm")]
        best = max(rate for name, rate in engines.items() if name != "veltair")
        rows.append([step, *rates, f"{engines['veltair'] / best:.2f}x"])
    return markdown_table(["steps a second", "veltair", "torch", "FBGEMM", "veltair over the best other"], rows)


def feature_columns(found: Mapping[str, Any]) -> str:
    rows = []
    for key, title in COLUMN_SETS.items():
        for batch, times in found[key].items():
            ours = [times.get(key) for key in ("veltair_ms", "veltair_request_ms")]
            peers = [times.get(key) for key in ("onnxruntime_ms", "tensorflow_ms")]
            factors = [f"{peer / mine:.1f}x" if peer and mine else "" for peer in peers for mine in ours]
            rows.append([title, batch, *(f"{mine:.2f}" if mine else "" for mine in ours), *factors])
    header = ["packed, ms", "from the request, ms"]
    header += [f"{peer} over {ours}" for peer in ("ONNX Runtime", "TensorFlow") for ours in ("packed", "request")]
    return markdown_table(["columns", "rows", *header], rows)


def column_ablations(found: Mapping[str, Any]) -> str:
    kernels, rows = found["kernels"], []
    for row in found["rows"]:
        ms = row["ms"]
        rows.append([row["batch"], f"{ms['nothing']:.2f}", *(f"{ms[key] / ms['nothing']:.2f}x" for key in LEFT_OUT)])
    header = [f"{title} ({kernels[key]:,} kernels)" if key == "fused" else title for key, title in LEFT_OUT.items()]
    return markdown_table(["rows", "all steps, ms", *header], rows)


def saved_models(found: Mapping[str, Any]) -> str:
    rows = []
    for name, facts in found["models"].items():
        gone = f"{100 * (1 - facts['layers'] / facts['operators']):.1f}%"
        for row in facts["rows"]:
            packed, arrays, peer = (row[f"{way}_ms"] for way in ("packed", "arrays", "tensorflow"))
            times = [f"{packed:.2f}", f"{arrays:.2f}", f"{peer:.1f}", f"{peer / packed:.1f}x", f"{peer / arrays:.1f}x"]
            rows.append([name, facts["operators"], facts["layers"], gone, row["batch"], *times, f"{row['error']:.0e}"])
    header = ["packed, ms", "from arrays, ms", "TensorFlow, ms", "over packed", "over arrays", "largest difference"]
    return markdown_table(["SavedModel", "operators", "layers", "gone", "rows", *header], rows)


def training_input(found: Mapping[str, Any]) -> str:
    rates = found["rows_per_s"]
    ours = rates["veltair, in memory, 1 process"]
    rows = [[name, f"{rate:,.0f}", f"{ours / rate:.2f}x"] for name, rate in rates.items()]
    return markdown_table(["input", "rows a second", "ours in memory over it"], rows)


def graph_convolution(found: Mapping[str, Any]) -> str:
    rows = []
    for threads in ("1 threads", "2 threads"):
        ms, gain = found[threads]["ms"], found[threads]["gain"]
        peers = [f"{ms[key]:.0f} ({gain[key]:.2f}x)" if key in ms else "" for key in GRAPH_PEERS]
        rows.append([threads.split()[0], f"{ms['veltair']:.0f}", *peers])
    return markdown_table(["threads", "veltair, ms", *GRAPH_PEERS.values()], rows)


def stitched_models(found: Mapping[str, Any]) -> str:
    rows = []
    for name, model in found["models"].items():
        ms, parts = model["ms"], model["parts"]
        peers = {key: parts["ms"].get(key) for key in ("onnxruntime", "xla")}
        cells = [f"{ms[way]:.2f}" for way in ("chosen", "off", "onnxruntime")]
        cells += [f"{parts['ms']['chosen']:.3f}", *(f"{ms:.3f}" if ms else "" for ms in peers.values())]
        cells.append(f"{peers['xla'] / parts['ms']['chosen']:.1f}x" if peers["xla"] else "")
        kernels = parts["kernels"]
        cells.append(f"{kernels['chosen']} of {kernels['xla']}" if "xla" in kernels else str(kernels["chosen"]))
        rows.append([name, *cells])
    whole = ["model, ms", "without stitching", "ONNX Runtime"]
    parts_of = ["memory-bound parts, ms", "ONNX Runtime's", "XLA's", "XLA's over ours", "our kernels of XLA's"]
    return markdown_table(["model", *whole, *parts_of], rows)


def stitching() -> str:
    rows, gains = [], []
    for row in read("stitching")["rows"]:
        others = [row["plain_us"], row["dlight_us"]]
        gains.append(min(others) / row["stitched_us"])
        cells = [f"{row['stitched_us']:.1f}", *(f"{time:.1f}" for time in others), f"{gains[-1]:.1f}x"]
        rows.append([row["subgraph"], row["threads"], *cells])
    table = markdown_table(["us", "threads", "stitched", "plain", "dlight", "over the better"], rows)
    return f"{table}\n\nGeometric mean over the better of the two: {geometric_mean(gains):.1f}x."


def layer_launch() -> str:
    rows = []
    for cores, found in read("blocks")["cores"].items():
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
        for row in read("scheduler")["rows"]
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
        for row in read("simulator")["rows"]
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
        for row in read("routers")["rows"]
    ]
    header = ["router", "machines that die", "in time", "worst tenant", "refused", "lost", "queries"]
    return markdown_table(header, rows)


def recom_e_gains(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many times faster RECom's E is than its peers, each in the peer's precision."""
    times = {(row["batch"], row["threads"], row["engine"], row["precision"], row.get("only")): row for row in rows}

    def ms(batch: int, threads: int, engine: str, precision: str = "fp32", only: str | None = None) -> float:
        return float(times[batch, threads, engine, precision, only]["median_ms"])

    cells = []
    for batch in sorted({row["batch"] for row in rows}):
        row = [str(batch)]
        for threads in (1, 2):
            ours = ms(batch, threads, "veltair")
            towers = ms(batch, threads, "onnxruntime", only="towers")
            both = ms(batch, threads, "tensorflow", only="columns") + towers
            narrow = ms(batch, threads, "openvino", "default") / ms(batch, threads, "veltair", "bf16")
            row += [f"{ms(batch, threads, 'onnxruntime') / ours:.1f}x", f"{both / ours:.1f}x", f"{narrow:.1f}x"]
        cells.append(row)
    header = ["RECom's E: rows"]
    for threads in ("1 thread", "2 threads"):
        header += [f"over ONNX Runtime, fp32, {threads}", f"over TensorFlow + ONNX Runtime, fp32, {threads}"]
        header += [f"over OpenVINO, bfloat16, {threads}"]
    return markdown_table(header, cells)
