"""The table of `bench/results/coverage.json` as Markdown, for `bench.tables`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from bench.part_tables import markdown_table

TITLE = "Networks that people bring"
TEXT = """Networks with random weights, exported by PyTorch's two exporters or by skl2onnx, compiled without a search in
a process with limits of time and memory, and verified in every version against ONNX Runtime (`python -m bench.coverage
--export-python PYTHON`; `networks.toml` beside it has the list). All in float32, so that differences are the
compiler's. Layers of our design spaces, of stitched kernels, of TVM's generic schedules, and those that ONNX Runtime
runs."""
# Our precision, and the engines and precisions that it is compared with the better of.
COMPARED = (("fp32", (("onnxruntime", "fp32"), ("openvino", "fp32"))), ("bf16", (("openvino", "default"),)))
KINDS = ("own", "stitched", "generic", "onnxruntime")
Facts = Mapping[str, Any]  # of a network, as `trial.try_network` returns them


def table(found: Facts) -> str:
    """A row for each family and exporter, then what fails."""
    groups: dict[tuple[str, str], list[Facts]] = {}
    for title, facts in found["networks"].items():
        family, _, exporter = title.split(".")
        if facts["exported"]:
            groups.setdefault((family, exporter), []).append(facts)
    rows = [[*group, *_counts(facts)] for group, facts in sorted(groups.items())]
    rows.append(["all", "", *_counts(facts for group in groups.values() for facts in group)])
    header = ["family", "exporter", "networks", "compile", "agree", "layers: own", "stitched", "TVM", "ONNX Runtime"]
    parts = [markdown_table(header, rows)]
    if times := _times(found["networks"]):
        parts.append(
            "Time over that of the better peer in float32, and that of bfloat16 over OpenVINO's default, which is "
            "bfloat16 too where the CPU has it:"
        )
        header = ["network", "fp32, 1 thread", "2 threads", "bf16, 1 thread", "2 threads"]
        parts.append(markdown_table(header, times))
    if bad := [f"`{title}`: {facts['fault']}" for title, facts in found["networks"].items() if _fails(facts)]:
        parts.append("What fails:\n\n" + "\n".join(f"- {line}" for line in bad))
    if refused := Counter(title.split(".")[-1] for title, f in found["networks"].items() if not f["exported"]):
        parts.append(
            "Not exported: " + ", ".join(f"{count} by {name}" for name, count in sorted(refused.items())) + "."
        )
    return "\n\n".join(parts)


def _times(networks: Mapping[str, Facts]) -> list[list[object]]:
    """Time over the better of the peers in float32, and of bfloat16 over OpenVINO's default, of what was timed."""
    rows: list[list[object]] = []
    for title, facts in networks.items():
        ms = {(t["engine"], t["precision"], t["threads"]): t["median_ms"] for t in facts.get("times", ())}
        cells = []
        for ours, peers in COMPARED:
            for threads in (1, 2):
                found = [
                    ms[engine, precision, threads] for engine, precision in peers if (engine, precision, threads) in ms
                ]
                own = ms.get(("veltair", ours, threads))
                cells.append(f"{own / min(found):.2f}x" if own and found else "")
        rows += [[title, *cells]] if any(cells) else []
    return rows


def _fails(facts: Facts) -> bool:
    return bool(facts["exported"] and not facts.get("agrees"))


def _counts(group: Iterable[Facts]) -> list[object]:
    every = list(group)
    layers: Counter[str] = Counter()
    for facts in every:
        layers.update(facts.get("layers", {}))
    done = [len(every), sum(facts["compiles"] for facts in every), sum(facts.get("agrees", False) for facts in every)]
    return [*done, *(layers[kind] for kind in KINDS)]
