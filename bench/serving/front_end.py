"""The cost of a query outside of its blocks: CPU time of client, front end and engine by bytes in and out, over gRPC.

    python -m bench.serving.front_end [--seconds 8] [--out bench/results/front.json]

Three models that compute next to nothing: small tensors, 1 MB in, 1 MB in and out. Queries come one by one, far apart.
The client is that of `veltair load`. The workers' time is left out, because it is the time of the blocks. One more run,
of a chain of large layers scheduled layer by layer, shows how long a worker stands still between two blocks.
`bench.paper.machine_model` writes the figures into a machine model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import tempfile
import time
import urllib.request
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

from bench.paths import CLI, result_path
from bench.serving.daemon import ServedModel, configuration, running, serve_command, write_toml
from veltair.loadgen.open_loop import draw_schedule
from veltair.loadgen.run_schedule import run_schedule
from veltair.loadgen.scenario import LoadSettings, TenantLoad
from veltair.loadgen.tenant_streams import connect, prepare_streams
from veltair.machine.environment import describe_environment

SMALL, LARGE = (1, 64, 8, 8), (1, 64, 64, 64)
BYTES = {"small": (16384, 16384), "in": (1 << 20, 256), "both": (1 << 20, 1 << 20)}  # in, out
QPS = 25.0
CHAIN = 12  # layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8.0, help="of load for each model")
    parser.add_argument("--artifacts", type=Path, help="where the models are kept (default: a temporary folder)")
    parser.add_argument("--out", type=result_path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="veltair-front-") as folder:
        kept = args.artifacts or Path(folder)
        prepare_models(kept)
        found = measure(kept, args.seconds)
    text = json.dumps({**found, "environment": asdict(describe_environment())}, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", "utf-8")


def prepare_models(folder: Path) -> None:
    kinds = (("small", "Relu", SMALL), ("in", "GlobalAveragePool", LARGE), ("both", "Relu", LARGE))
    for name, operator, shape in kinds:
        out = (*shape[:2], 1, 1) if operator == "GlobalAveragePool" else shape
        compile_nodes(folder, name, [helper.make_node(operator, ["x"], ["y"])], shape, out)
    links = ["x", *(f"t{i}" for i in range(1, CHAIN)), "y"]
    pools = [helper.make_node("MaxPool", [a], [b], kernel_shape=[3, 3], pads=[1, 1, 1, 1]) for a, b in pairwise(links)]
    compile_nodes(folder, "chain", pools, LARGE, LARGE)  # more than the caches hold beside the engine's code


def compile_nodes(
    folder: Path, name: str, nodes: list[onnx.NodeProto], shape: tuple[int, ...], out: tuple[int, ...]
) -> None:
    """Compiles a network from a tensor `x` to a tensor `y` into FOLDER/NAME, where it is missing."""
    if (folder / name).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", out)))
    graph = helper.make_graph(nodes, name, [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    options = ["--out", str(folder / name), "--name", name, "--precision", "fp32", "--trials", "0"]
    subprocess.run([*CLI, "compile", str(path), *options], check=True, stdout=subprocess.DEVNULL)


def measure(folder: Path, seconds: float) -> dict[str, object]:
    with running(_serve(folder, "fcfs", list(BYTES))) as (pid, at):
        rows = {name: asyncio.run(_drive(pid, at["grpc"], name, seconds)) for name in BYTES}
    with running(_serve(folder, "layerwise", ["chain"])) as (pid, at):
        asyncio.run(_drive(pid, at["grpc"], "chain", seconds / 2))
        with urllib.request.urlopen(f"http://{at['http']}/metrics") as answer:
            seen = dict(re.findall(r"(?m)^veltair_block_gap_seconds_(sum|count) (\S+)", answer.read().decode()))
    gap_ns = float(seen["sum"]) / float(seen["count"]) * 1e9
    cpu_ns = {name: row["cpu_ns"] for name, row in rows.items()}
    # cpu = query + in x bytes in + out x bytes out
    terms = np.array([(1.0, *BYTES[name]) for name in BYTES])
    query_ns, in_ns, out_ns = np.linalg.solve(terms, [cpu_ns[name] for name in BYTES])
    return {
        "query_ns": round(query_ns),
        "ns_per_byte_in": round(in_ns, 3),
        "ns_per_byte_out": round(out_ns, 3),
        "dispatch_ns": round(gap_ns),
        "models": rows,
    }


async def _drive(pid: int, address: str, name: str, seconds: float) -> dict[str, float]:
    """Returns the mean CPU time of a query by process, and its median round trip."""
    load = LoadSettings(target=f"grpc://{address}", duration_s=seconds)
    client = await connect(load)
    try:
        streams = await prepare_streams(client, [TenantLoad(name=name, qps=QPS, target_ms=1000.0)], 1)
        schedule = draw_schedule(streams, 1.0, 1, 0.0, seconds)
        before = _cpu_ns(pid)
        trace = await run_schedule(client, streams, schedule, asyncio.Event())
        took = {key: (after - before[key]) / len(schedule.arrival_ns) for key, after in _cpu_ns(pid).items()}
    finally:
        await client.close()
    round_trip = float(np.median(trace.done_ns - schedule.arrival_ns))
    return {"cpu_ns": sum(took.values()), "round_trip_p50_ns": round_trip} | {f"{k}_ns": v for k, v in took.items()}


def _cpu_ns(front: int) -> dict[str, int]:
    """CPU time by process so far. psutil gives it in clock ticks of 10 ms, which is more than a query takes."""
    engine = next(child for child in psutil.Process(front).children() if "engine_main" in " ".join(child.cmdline()))
    pids = {"front": front, "engine": engine.pid}
    clocks = {name: (~pid << 3) | 2 for name, pid in pids.items()}  # a process's CPU clock, see clock_getcpuclockid(3)
    return {"client": time.process_time_ns()} | {n: time.clock_gettime_ns(clock) for n, clock in clocks.items()}


def _serve(folder: Path, policy: str, names: list[str]) -> list[str]:
    config = folder / "serve.toml"
    write_toml(config, configuration([ServedModel(name, (folder / name).resolve(), 1000) for name in names], policy))
    return serve_command(config)


if __name__ == "__main__":
    main()
