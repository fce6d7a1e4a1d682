"""`veltair plan`: the layer-blocks that the scheduler would form for a query of one model, and why."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from veltair.errors import ConfigError
from veltair.machine.topology import usable_machine
from veltair.profiles.artifact.artifact_folder import load_artifact
from veltair.scheduler.block_plan import BlockPlan, PlannedBlock, explain
from veltair.terminal import Column, ResultTable, result_console
from veltair.types import Machine, ModelProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", type=Path, metavar="DIR")
    here = "cores of the machine (default: this one's, as far as the artifact was timed)"
    parser.add_argument("--cores", type=int, metavar="N", help=here)
    parser.add_argument(
        "--level", type=float, default=1.0, metavar="L", help="interference level (default: 1.0, alone)"
    )
    parser.add_argument("--load", default="0", metavar="C,C,…", help="average cores that the other queries need")
    parser.add_argument("--qos-ms", type=float, help="time that the query has (default: the artifact's target)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.epilog = """\
examples:
  veltair plan artifacts/resnet50
  veltair plan artifacts/resnet50 --cores 2 --level 1.3 --load 1,1"""


def run(args: argparse.Namespace) -> int:
    artifact = load_artifact(args.artifact)
    profile = next((p for p in artifact.profiles() if p.batch >= args.batch), None)
    if profile is None or args.batch < 1:
        raise ConfigError(f"--batch {args.batch}: the artifact takes 1 … {artifact.manifest.max_batch}")
    cores = min(len(usable_machine().cores), profile.cores) if args.cores is None else args.cores
    if not 1 <= cores <= profile.cores:
        raise ConfigError(f"--cores {cores}: the artifact was timed on 1 … {profile.cores}")
    try:
        others = [int(part) for part in args.load.split(",") if part]
    except ValueError:
        raise ConfigError(f"--load {args.load}: expected whole numbers of cores with commas between") from None
    qos_ns = artifact.manifest.qos_ns if args.qos_ms is None else round(args.qos_ms * 1e6)
    machine = Machine((tuple(range(cores)),))
    plan = explain(profile, machine, qos_ns, args.level, others)
    if args.json:
        print(json.dumps(dataclasses.asdict(plan)))
    else:
        _show(plan, profile)
    return 0


def _show(plan: BlockPlan, profile: ModelProfile) -> None:
    console = result_console()
    console.print(
        f"[bold]{plan.model}[/] batch {plan.batch}: {len(profile.layers)} layers, target {plan.qos_ns / 1e6:g} ms, "
        f"{plan.cores} cores at interference level {plan.level:g}\n"
        f"needs {plan.avg_cores} on average (Avg_C), may take {plan.threshold_cores} more (thres); "
        f"{len(plan.pivots)} pivots, {len(plan.blocks)} blocks, {plan.predicted_ns / 1e6:.2f} ms predicted",
        soft_wrap=True,
    )
    table = ResultTable(
        (
            Column("block"),
            Column("layers"),
            Column("first layer", is_name=True),
            Column("cores"),
            Column("predicted\nms"),
            Column("share of\ntarget ms", rank=1),
            Column("versions", is_name=True, rank=3),
            Column("capped", rank=2),
        )
    )
    for number, block in enumerate(plan.blocks):
        table.add(str(number), *_cells(block, profile))
    table.print(console)


def _cells(block: PlannedBlock, profile: ModelProfile) -> Iterator[str]:
    yield f"{block.start}-{block.stop - 1}"
    yield profile.layers[block.start].name
    yield str(block.cores)
    yield f"{block.predicted_ns / 1e6:.3f}"
    yield f"{block.qos_ns / 1e6:.3f}"
    counts = {version: block.versions.count(version) for version in sorted(set(block.versions))}
    yield " ".join(f"v{version}x{count}" for version, count in counts.items())
    yield "yes" if block.capped else ""
