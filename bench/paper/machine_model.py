"""Writes the model of this machine for the simulator.

    python -m bench.paper.machine_model --name NAME --out FILE.toml [--results DIR]
    python -m bench.paper.machine_model --kernels avx2

The second form writes the measured shares of `veltair.simulation.machine_model.kernel_shares` from the shipped tuning
records, and needs no measurement.

Run the first on an idle machine. Sizes and instruction sets come from the kernel; bandwidths and the clock are measured
by `machine.c`, the cost of a launch by `bench.kernels.layer_launch`, the cost of a query outside of its blocks by
`bench.serving.front_end`. The share of the register tile's bound that kernels reach is the median over the tuning
records of large convolutions. Each value is written beside its source.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from bench.paths import RESULTS, ROOT, result_path
from veltair.compiler.tuning.transfer import parse_workload
from veltair.machine.environment import describe_environment
from veltair.machine.isa import cpu_features
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import cache_bytes, usable_machine
from veltair.profiles.records.tuning_records import SHIPPED, TuningRecord, read_records, user_folder
from veltair.simulation.machine_model.kernel_shares import KernelShare, KernelTable, slowest_of
from veltair.simulation.machine_model.layer_shapes import LayerShape
from veltair.simulation.machine_model.machine_model import MachineModel, load_machine_model, parse_machine_model
from veltair.simulation.machine_model.tilings import enumerate_tilings

SOURCE = Path(__file__).parent / "machine.c"
KERNELS = ROOT / "veltair" / "simulation" / "machine_model" / "data" / "kernels"
LARGE = 50_000_000  # FLOPs of a convolution whose time on one core is not its launch
# The machine files of the CPUs on which records were taken, and what differs where kernels use fewer instructions.
RECORDED_ON: dict[str, tuple[str, dict[str, Any]]] = {
    "xeon-2": ("Intel(R) Xeon(R) Processor", {"vector_bits": 256, "registers": 16})
}
MEMORY_BYTES = 2 << 30  # read by each core: more than any cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name")
    parser.add_argument("--out", type=result_path)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where blocks.json and front.json are")
    parser.add_argument("--kernels", choices=["avx2"], help="write the measured shares of these kernels")
    arguments = parser.parse_args()
    if arguments.kernels is not None:
        write_kernels(arguments.kernels)
        return
    if arguments.name is None or arguments.out is None:
        parser.error("expected --name and --out, or --kernels")
    blocks, front = (
        json.loads((arguments.results / f"{name}.json").read_text("utf-8")) for name in ("blocks", "front")
    )
    text = describe(arguments.name, measure(), blocks, front)
    parse_machine_model(text, str(arguments.out))
    arguments.out.write_text(text, "utf-8")


def measure() -> dict[str, float]:
    """Returns the clock in GHz and bandwidths in GB/s, as measured by `machine.c`."""
    l3_bytes = 4 * cache_bytes()["L2"]
    memory = min(MEMORY_BYTES, memory_bytes() // 4 // len(usable_machine().cores))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "machine"
        subprocess.run(["gcc", "-O3", "-march=native", "-pthread", SOURCE, "-o", program], check=True)
        command = [program, str(l3_bytes), str(memory), *map(str, usable_machine().cores)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def describe(name: str, measured: dict[str, float], blocks: dict[str, Any], front: dict[str, Any]) -> str:
    """Returns the text of the machine's file."""
    wide, tiles, count = "avx512" in cpu_features(), "amx_bf16" in cpu_features(), len(usable_machine().cores)
    domains, sizes = usable_machine().domains, cache_bytes()
    empty_ns = [1000 * blocks["cores"][str(n)]["us_per_empty_layer"]["call a block"] for n in (1, count)]
    empty = "bench/kernels/layer_launch.py: an empty parallel layer of a block on this machine"
    spent = "bench/serving/front_end.py: CPU time of client, front end and engine for a query over gRPC"
    between = "bench/serving/front_end.py: a worker between two blocks"
    read_by = "bench/paper/machine.c: loads"
    values: dict[str, tuple[float, str]] = {
        "cores": (count, "affinity mask and cgroup quota"),
        "domain_cores": (max(map(len, domains)), "/sys/devices/system/cpu/cpu*/cache/index3/shared_cpu_list"),
        "l2_bytes": (sizes["L2"], "/sys/devices/system/cpu/cpu0/cache/index2/size"),
        "l3_bytes": (sizes["L3"], "/sys/devices/system/cpu/cpu0/cache/index3/size"),
        "clock_ghz": (measured["clock_ghz"], "bench/paper/machine.c: dependent additions, one a cycle"),
        "vector_bits": (512 if wide else 256, "flags of /proc/cpuinfo"),
        "fma_units": (2, "Intel optimization manual: two units of the full width since Skylake-SP; AMD since Zen 2"),
        "fma_latency": (4, "Intel optimization manual: 4 cycles"),
        "loads": (2, "Intel optimization manual: two loads of the full width a cycle"),
        "registers": (32 if wide else 16, "architecture"),
        "matrix_flops": (
            (1024, "Intel optimization manual: a tile product of 16384 bfloat16 FLOPs each 16 cycles")
            if tiles
            else (0, "flags of /proc/cpuinfo: no AMX")
        ),
        "vector_efficiency": (1.0, ""),
        "matrix_efficiency": (1.0, "") if tiles else (0.0, "no matrix unit"),
        "l3_gb_s": (measured["l3_gb_s"], f"{read_by} of one core from four times its L2"),
        "core_gb_s": (measured["core_gb_s"], f"{read_by} of one core from memory"),
        "domain_gb_s": (measured["dram_gb_s"], f"{read_by} of all cores from memory"),
        "dram_gb_s": (measured["dram_gb_s"], f"{read_by} of all cores from memory"),
        "launch_ns": (round(empty_ns[0]), f"{empty}, on one core"),
        "launch_core_ns": (round((empty_ns[1] - empty_ns[0]) / max(count - 1, 1)), f"{empty}, each core more"),
        "spawn_median_ns": (100_000, "VELTAIR fig. 5b"),
        "spawn_mean_ns": (220_000, "VELTAIR fig. 5b"),
        "dispatch_ns": (
            front["dispatch_ns"],
            f"{between} of a query, layer by layer",
        ),
        "front_ns": (front["query_ns"], f"{spent} with small tensors"),
        "front_in_ns": (front["ns_per_byte_in"], f"{spent}, each byte sent more"),
        "front_out_ns": (front["ns_per_byte_out"], f"{spent}, each byte answered more"),
    }
    model = MachineModel(name, "", **{key: value for key, (value, _) in values.items()})  # type: ignore[arg-type]
    for unit, record in (("vector", "avx512"), ("matrix", "amx")):
        key = f"{unit}_efficiency"
        if values[key][0]:
            ratios = efficiencies(model if unit == "matrix" else replace(model, matrix_flops=0), record)
            source = (
                f"bench/paper/machine_model.py: median over {len(ratios)} large convolutions recorded in {record}.jsonl"
            )
            values[key] = (round(statistics.median(ratios), 3), source)
    document: dict[str, Any] = {"name": name, "title": f"{describe_environment().cpu}, {count} cores"}
    for key, (value, source) in values.items():
        document[key] = {"value": int(value) if value == int(value) else float(f"{value:g}"), "source": source}
    return "# Written by bench/paper/machine_model.py.\n" + tomli_w.dumps(document)


def efficiencies(model: MachineModel, record: str) -> list[float]:
    """Returns the share of its bound that the best recorded kernel of each large direct convolution reaches.

    Only records of this CPU count, on one core.
    """
    here = [e for e in recorded((SHIPPED, user_folder()), record) if e.cpu == describe_environment().cpu]
    shapes = {workload: (shape, run_ns) for workload, shape, run_ns in best_runs(here) if shape.op == "conv2d"}
    return [
        float(enumerate_tilings(shape, model, 1).compute_ns.min()) / run_ns[0]
        for shape, run_ns in shapes.values()
        if shape.flops >= LARGE
    ]


def recorded(folders: Sequence[Path], record: str) -> list[TuningRecord]:
    return [entry for folder in folders for entry in read_records(folder / f"{record}.jsonl")]


def best_runs(records: Iterable[TuningRecord]) -> Iterator[tuple[str, LayerShape, list[int]]]:
    """Yields each workload that has the shape of a convolution or product, and its least times by core count in ns.

    Of convolutions direct kernels count alone, because the tilings of the machine models are direct ones.
    """
    best: dict[tuple[str, int], list[int]] = {}
    for entry in records:
        if entry.run_ns and entry.point.get("algorithm", "direct") == "direct":
            key = entry.workload, entry.batch
            known = best.setdefault(key, list(entry.run_ns))
            known[:] = map(min, known, entry.run_ns)
    for (workload, batch), run_ns in best.items():
        if (shape := _shape(workload, batch)) is not None:
            yield workload, shape, run_ns


def _shape(workload: str, batch: int) -> LayerShape | None:
    parsed = parse_workload(workload)
    if parsed.op not in ("conv2d", "matmul", "depthwise_conv2d"):
        return None
    (_, x, _), *_, (_, y, _) = parsed.tensors
    if parsed.op == "matmul":
        m, n, k = batch * -x[0] if x[0] < 0 else x[0], y[1], x[1]
        return LayerShape("", "matmul", 2 * m * n * k, m * k, n * k, m * n, m=m, n=n, k=k)
    rows, columns = (int(part) for part in parsed.attributes["kernel"].strip("()").split(","))
    pixels, inputs, outputs = y[2] * y[3], x[1] * x[2] * x[3], y[1] * y[2] * y[3]
    if parsed.op == "depthwise_conv2d":
        weights = y[1] * rows * columns
        return LayerShape("", parsed.op, 2 * outputs * rows * columns, inputs, weights, outputs)
    k, reach = x[1] * rows * columns, (rows - 1) / int(parsed.attributes["strides"].strip("()").split(",")[0])
    flops, weights = 2 * outputs * k, y[1] * k
    return LayerShape(
        "", "conv2d", flops, inputs, weights, outputs, m=pixels, n=y[1], k=k, row=y[3], reach=round(reach, 3)
    )


def write_kernels(record: str) -> None:
    """Writes the share of its bound that the best recorded kernel of each shape reaches on one core, and how much the
    slowest of several cores takes longer than their mean.

    The bound is that of the machine's own tilings with these instructions, so that a machine model which has the same
    tilings gives the measured time again. Raises ConfigError where the records are of several CPUs.
    """
    entries = recorded((SHIPPED,), record)
    (machine,) = [name for name, (cpu, _) in RECORDED_ON.items() if {e.cpu for e in entries} == {cpu}]
    model = replace(load_machine_model(machine), **RECORDED_ON[machine][1], vector_efficiency=1.0, matrix_flops=0)
    found: dict[tuple[Any, ...], tuple[KernelShare, int]] = {}
    losses = []
    for _, shape, run_ns in best_runs(entries):
        bound = enumerate_tilings(shape, model, 2).compute_ns.min(axis=0)
        share = KernelShare(shape.op, shape.reach > 0, shape.m, shape.n, shape.k, shape.outputs, 0.0)
        one = float(bound[0]) / run_ns[0]
        key = msgspec.structs.astuple(share)
        if key not in found or run_ns[0] < found[key][1]:
            found[key] = msgspec.structs.replace(share, share=round(one, 3)), run_ns[0]
        if shape.op == "conv2d" and shape.flops >= LARGE:
            two_ns = run_ns[1] - model.launch_ns - model.launch_core_ns
            losses.append(two_ns / float(bound[1]) * one - 1)
    table = KernelTable(
        source=f"bench/paper/machine_model.py: profiles/records/{record}.jsonl, {entries[0].cpu}",
        imbalance=round(statistics.median(losses) / slowest_of(2), 4),
        shares=tuple(sorted((share for share, _ in found.values()), key=msgspec.structs.astuple)),
    )
    text = msgspec.json.format(msgspec.json.encode(table), indent=1).decode()
    (KERNELS / f"{record}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
