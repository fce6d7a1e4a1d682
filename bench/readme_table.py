"""Writes the README's table from the committed results: `python -m bench.readme_table`."""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any

from bench.kernels.networks import KERNEL_RESULTS, NetworkTimes
from bench.part_tables import markdown_table
from bench.paths import RESULTS, ROOT
from bench.recsys.models import times_of
from bench.section import read
from bench.serving.peak_figure import median_peaks
from bench.serving.way.plan import CPU, LONE, PEAK
from bench.serving.way.summary import medians

README = ROOT / "README.md"
BEGIN, END = "<!-- measured: python -m bench.readme_table -->", "<!-- end measured -->"


def network_rows() -> list[list[str]]:
    """ResNet-50, then all networks: times over the peers' on one thread / two."""
    networks = [NetworkTimes(path) for path in sorted(KERNEL_RESULTS.glob("*.json")) if path.stem != "dlrm"]
    (resnet,) = (times for times in networks if times.facts["model"] == "resnet50")

    def ratios(precision: str, peer: tuple[str, str]) -> str:
        means = (geometric_mean(times.ratio(precision, peer, threads) for times in networks) for threads in (1, 2))
        return " / ".join(f"{mean:.2f}x" for mean in means) + " its time"

    bf16, fp32 = ("openvino", "default"), ("onnxruntime", "fp32")
    return [
        [
            "ResNet-50, bfloat16, 1 thread / 2",
            " / ".join(f"{resnet.ours('bf16', threads):.1f}" for threads in (1, 2)) + " ms",
            "OpenVINO's default " + " / ".join(f"{resnet.theirs(bf16, threads):.1f}" for threads in (1, 2)) + " ms",
            " / ".join(f"{resnet.ratio('bf16', bf16, threads):.2f}x" for threads in (1, 2)) + " its time",
        ],
        [f"geometric mean of {len(networks)} networks, bfloat16", "", "OpenVINO's default", ratios("bf16", bf16)],
        [f"geometric mean of {len(networks)} networks, fp32", "", "ONNX Runtime", ratios("fp32", fp32)],
    ]


def int8_row() -> list[str]:
    """Files that ONNX Runtime's tool quantised: times over OpenVINO's on the same file."""
    models = read("int8")["models"]

    def ratio(engines: list[dict[str, Any]]) -> float:
        ms = {(each["engine"], each["precision"]): each["median_ms"] for each in engines}
        return float(ms["veltair", "int8"] / ms["openvino", "default"])

    means = (geometric_mean(ratio(by_threads[threads]) for by_threads in models.values()) for threads in ("1", "2"))
    title = f"geometric mean of {len(models)} quantised files, 8-bit integers"
    return [title, "", "OpenVINO on the same file", " / ".join(f"{mean:.2f}x" for mean in means) + " its time"]


def mix_row(title: str, name: str, percentile: float) -> list[str]:
    """The greatest load of a mix at which every tenant's targets hold."""
    peaks = median_peaks(RESULTS / name, percentile)
    ours = peaks.pop("veltair, veltair")
    peer = max((qps, stack) for stack, qps in peaks.items() if not stack.startswith("veltair"))
    return [title, f"{ours:.0f} QPS", f"{peer[1].partition(',')[0]} {peer[0]:.0f} QPS", f"{ours / peer[0]:.1f}x"]


def recom_row() -> list[str]:
    """RECom's E from raw features to the score, in the one precision that all engines have."""
    at = {
        key[2:]: ms for key, ms in times_of(read("recsys")["models"]["recom_e"]["rows"]).items() if key[:2] == (256, 2)
    }
    ours, ort = at["veltair", "fp32", None], at["onnxruntime", "fp32", None]
    both = at["tensorflow", "fp32", "columns"] + at["onnxruntime", "fp32", "towers"]
    theirs, peer = min((ort, "ONNX Runtime with ready-made ids"), (both, "TensorFlow's columns + ONNX Runtime"))
    title = "RECom's E, fp32, 256 rows of 1,032 raw features (ours packed), 2 threads"
    return [title, f"{ours:.1f} ms", f"{peer} {theirs:.1f} ms", f"{theirs / ours:.1f}x as fast"]


def way_rows() -> list[list[str]]:
    """A small query over gRPC: the greatest load, the answer to a lone client, and what the servers spend on it."""
    found = read("epyc-avx2/way")
    title = "one row of DLRM over gRPC, EPYC with AVX2 alone"
    peaks = medians(found, "dlrm", PEAK, "grpc", lambda entry: entry["peak_qps"])
    qps, peer = max((qps, stack) for stack, qps in peaks.items() if stack.startswith("Triton"))
    rows = [
        [
            f"{title}, 95 % within 10 ms",
            f"{peaks['veltair']:,.0f} QPS",
            f"{peer} {qps:,.0f} QPS",
            f"{peaks['veltair'] / qps:.1f}x",
        ]
    ]
    lone_ms = medians(found, "dlrm", LONE, "grpc", lambda entry: entry["p50_ms"])
    cpu_ms = medians(found, "dlrm", CPU, "grpc", lambda entry: sum(entry["server_cpu_ms"].values()))
    for what, times_ms in (("answer to a lone client, p50", lone_ms), ("CPU time at 200 QPS", cpu_ms)):
        ms, peer = min((ms, stack) for stack, ms in times_ms.items() if stack.startswith("Triton"))
        ours = times_ms["veltair"]
        rows.append([f"the same, {what}", f"{ours:.2f} ms", f"{peer} {ms:.2f} ms", f"{ours / ms:.2f}x its time"])
    return rows


def table() -> str:
    """The table as Markdown."""
    mixes = [
        mix_row("three vision networks, 95 % in target", "mix-vision.json", 0.95),
        mix_row("three vision networks, 99 % in target", "mix-vision.json", 0.99),
        mix_row("two vision and two recommendation, 95 %", "mix-recsys.json", 0.95),
        mix_row("three vision networks, 95 %, EPYC", "epyc/mix-vision.json", 0.95),
    ]
    return markdown_table(
        ["", "veltair", "best peer", ""], [*mixes, *network_rows(), int8_row(), recom_row(), *way_rows()]
    )


def readme() -> str:
    """The README with the present table between its marks."""
    before, rest = README.read_text("utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(readme(), "utf-8")
