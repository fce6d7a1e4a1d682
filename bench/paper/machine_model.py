"""Writes the model of this machine for the simulator.

    python -m bench.paper.machine_model --name NAME --out FILE.toml [--results DIR]

Run it on an idle machine. Sizes and instruction sets come from the kernel; bandwidths and the clock are measured by
`machine.c`, the cost of a launch by `bench.kernels.layer_launch`, the cost of a query outside of its blocks by
`bench.serving.front_end`. The share of the register tile's bound that kernels reach is the median over the tuning
records of large convolutions. Each value is written beside its source.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from bench.paths import RESULTS
from veltair.compiler.tuning.transfer import parse_workload
from veltair.machine.environment import describe_environment
from veltair.machine.isa import cpu_features
from veltair.machine.memory import memory_bytes
from veltair.machine.topology import cache_bytes, usable_machine
from veltair.profiles.records.tuning_records import SHIPPED, read_records, user_folder
from veltair.simulation.machine_model.layer_shapes import LayerShape
from veltair.simulation.machine_model.machine_model import MachineModel, parse_machine_model
from veltair.simulation.machine_model.tilings import enumerate_tilings

SOURCE = Path(__file__).parent / "machine.c"
LARGE = 50_000_000  # FLOPs of a convolution whose time on one core is not its launch
MEMORY_BYTES = 2 << 30  # read by each core: more than any cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--results", type=Path, default=RESULTS, help="where blocks.json and front.json are")
    arguments = parser.parse_args()
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
    best: dict[str, int] = {}
    cpu = describe_environment().cpu
    for entry in (
        e for folder in (SHIPPED, user_folder()) for e in read_records(folder / f"{record}.jsonl") if e.cpu == cpu
    ):
        direct = entry.point.get("algorithm", "direct") == "direct"
        if entry.workload.startswith("conv2d") and direct and entry.run_ns:
            best[entry.workload] = min(entry.run_ns[0], best.get(entry.workload, entry.run_ns[0]))
    ratios = []
    for workload, took_ns in best.items():
        (_, x, _), *_, (_, y, _) = parse_workload(workload).tensors
        rows, columns = (int(part) for part in parse_workload(workload).attributes["kernel"].strip("()").split(","))
        depth, m = x[1] * rows * columns, y[2] * y[3]
        flops = 2 * m * y[1] * depth
        if flops >= LARGE:
            shape = LayerShape("", "conv2d", flops, 0, 0, 0, m=m, n=y[1], k=depth, row=y[3])
            ratios.append(float(enumerate_tilings(shape, model, 1).compute_ns.min()) / took_ns)
    return ratios


if __name__ == "__main__":
    main()
