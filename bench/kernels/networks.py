"""Each network of the zoo beside ONNX Runtime and OpenVINO, and its error.

    python -m bench.kernels.networks [--models A,B,…] [--again]

Writes missing models and artifacts into `demo/models` and `demo/bench`, and one file for each network into
`bench/results/kernels`. Existing files are kept, so that an interrupted run continues; `--again` measures again. Run it
on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from bench.paths import CLI, DEMO, RESULTS

KERNEL_RESULTS = RESULTS / "kernels"
NETWORKS = (
    "resnet50",
    "googlenet",
    "efficientnet_b0",
    "mobilenet_v2",
    "ssd300",
    "ssd_mobilenet",
    "tiny_yolov2",
    "bert_base",
    "bert_large",
)
BATCH = {"dlrm": 32}  # others: 1
MODELS = (*NETWORKS, *BATCH)
PRECISIONS = ("fp32", "bf16")
THREADS = (1, 2)
# Our precision, the peer, bar and goal: our time over the peer's.
BARS = (
    ("fp32", ("onnxruntime", "fp32"), 1.0, 0.8),
    ("fp32", ("openvino", "fp32"), 1.0, 0.85),
    ("bf16", ("openvino", "default"), 0.8, 0.5),
)
WORST = 1.25
SCALING = 1.7
LABEL = {
    ("onnxruntime", "fp32"): "ONNX Runtime fp32",
    ("openvino", "fp32"): "OpenVINO fp32",
    ("openvino", "default"): "OpenVINO default",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS), help="separated by commas (default: all)")
    parser.add_argument("--again", action="store_true", help="measure what was measured already")
    parser.add_argument("--trials", type=int, help="candidates a layer where there are no records (default: compile's)")
    parser.add_argument("--rounds", type=int, help="rounds of each engine (default: veltair bench's)")
    parser.add_argument("--results", type=Path, default=KERNEL_RESULTS, help="folder of this machine's results")
    args = parser.parse_args()
    wanted = args.models.split(",")
    if unknown := [name for name in wanted if name not in MODELS]:
        parser.error(f"no model {', '.join(unknown)}; expected some of {', '.join(MODELS)}")
    args.results.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(wanted, 1):
        print(f"== {name} ({number} of {len(wanted)})", flush=True)
        result = args.results / f"{name}.json"
        if args.again or not result.exists():
            result.write_text(json.dumps(measure(name, args.trials, args.rounds), indent=1) + "\n", "utf-8")
    print(tables(args.results))
    return 0


def measure(name: str, trials: int | None = None, rounds: int | None = None) -> dict[str, Any]:
    """Writes, compiles and verifies one model, and times it in alternate runs with its peers."""
    onnx = DEMO / "models" / f"{name}.onnx"
    if not onnx.exists():
        onnx.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([*CLI, "zoo", name, "--out", str(onnx)], check=True)
    artifacts = [_compiled(name, onnx, precision, trials) for precision in PRECISIONS]
    checks = {
        precision: _json(*CLI, "verify", str(artifact), str(onnx), "--json")
        for precision, artifact in zip(PRECISIONS, artifacts, strict=True)
    }
    also = [part for artifact in artifacts[1:] for part in ("--also", str(artifact))]
    also += [] if rounds is None else ["--rounds", str(rounds)]
    found = _json(*CLI, "bench", str(artifacts[0]), str(onnx), *also, "--batch", str(BATCH.get(name, 1)), "--json")
    return found | {"verify": checks}


def _compiled(name: str, onnx: Path, precision: str, trials: int | None) -> Path:
    artifact = DEMO / "bench" / f"{name}-{precision}"
    if not artifact.exists():
        more = [] if trials is None else ["--trials", str(trials)]
        command = [*CLI, "compile", str(onnx), "--out", str(artifact), "--name", name, "--precision", precision, *more]
        command.append("--fresh-timings")  # what is published is measured now
        subprocess.run(command, check=True)
    return artifact


def _json(*command: str) -> dict[str, Any]:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:  # 1: a verification that failed says so in its facts
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class NetworkTimes:
    """Median milliseconds of one model by engine, precision and threads."""

    def __init__(self, path: Path) -> None:
        self.facts: dict[str, Any] = json.loads(path.read_text("utf-8"))
        rows = self.facts["rows"]
        self._median_ms = {(row["engine"], row["precision"], row["threads"]): float(row["median_ms"]) for row in rows}

    def ours(self, precision: str, threads: int) -> float:
        return self._median_ms["veltair", precision, threads]

    def theirs(self, peer: tuple[str, str], threads: int) -> float:
        return self._median_ms[(*peer, threads)]

    def ratio(self, precision: str, peer: tuple[str, str], threads: int) -> float:
        return self.ours(precision, threads) / self.theirs(peer, threads)


def tables(results: Path = KERNEL_RESULTS) -> str:
    """Markdown: every model that was measured, then the bars over the nine networks."""
    paths = {name: results / f"{name}.json" for name in MODELS}
    measured = {name: NetworkTimes(path) for name, path in paths.items() if path.exists()}
    lines = [
        "| median ms | threads | veltair fp32 | ONNX Runtime fp32 | OpenVINO fp32 | veltair bf16 | OpenVINO default |"
        " cosine of bf16 logits |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, times in measured.items():
        label = f"{name}, batch {BATCH[name]}" if name in BATCH else name
        for threads in THREADS:
            cells = [f"{times.ours('fp32', threads):.2f}"]
            for precision, peer, *_ in BARS:
                if precision == "bf16":
                    cells.append(f"{times.ours('bf16', threads):.2f}")
                cells.append(f"{times.theirs(peer, threads):.2f} ({times.ratio(precision, peer, threads):.2f}x)")
            cells.append(f"{times.facts['verify']['bf16']['min_cosine']:.5f}")
            lines.append(f"| {label} | {threads} | " + " | ".join(cells) + " |")
    lines += ["", "In brackets: veltair's time over that engine's, of the same run.", ""]
    networks = [times for name, times in measured.items() if name in NETWORKS]
    if networks:
        lines += _bars(networks)
    return "\n".join(lines)


def _bars(networks: Sequence[NetworkTimes]) -> list[str]:
    lines = [
        f"| over {len(networks)} of {len(NETWORKS)} networks | geomean, 1 thread | 2 threads | bar | goal |"
        f" worst network (bar {WORST}) |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for precision, peer, bar, goal in BARS:
        ratios = [[times.ratio(precision, peer, threads) for times in networks] for threads in THREADS]
        means = [f"{geometric_mean(each):.2f}x" for each in ratios]
        worst = max((r, t.facts["model"]) for each in ratios for r, t in zip(each, networks, strict=True))
        cells = [*means, f"{bar}x", f"{goal}x", f"{worst[0]:.2f}x {worst[1]}"]
        lines.append(f"| veltair {precision} against {LABEL[peer]} | " + " | ".join(cells) + " |")
    speedups: list[tuple[str, Callable[[NetworkTimes, int], float]]] = [
        *((f"veltair {p}", lambda times, threads, p=p: times.ours(p, threads)) for p in PRECISIONS),
        *((LABEL[peer], lambda times, threads, peer=peer: times.theirs(peer, threads)) for _, peer, *_ in BARS),
    ]
    lines += ["", f"| two cores over one (bar {SCALING}x) | geomean | least |", "| --- | --- | --- |"]
    for label, of in speedups:
        gains = [(of(times, 1) / of(times, 2), times.facts["model"]) for times in networks]
        least = min(gains)
        lines.append(f"| {label} | {geometric_mean(g for g, _ in gains):.2f}x | {least[0]:.2f}x {least[1]} |")
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
