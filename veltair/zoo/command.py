"""`veltair zoo NAME --out FILE`: builds a demo model with seeded weights."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from veltair.zoo.dlrm import DlrmShape
from veltair.zoo.models import ZOO, write

_SHAPE = {
    "tables": "embedding tables",
    "rows": "rows of each table",
    "dim": "floats of a row",
    "lookups": "rows summed per bag",
    "max_batch": "largest batch, stated in the model",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", choices=ZOO, metavar="NAME", help=", ".join(ZOO))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .onnx file to write")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    group = parser.add_argument_group("dlrm only")
    for name, text in _SHAPE.items():
        default = DlrmShape.__dataclass_fields__[name].default
        group.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{text} (default {default})")


def run(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in _SHAPE if getattr(args, name) is not None}
    shape = DlrmShape(**given) if given else None
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(args.name, total=None)
        files = write(
            args.name, args.out, args.seed, shape, lambda n, total: bar.update(task, completed=n, total=total)
        )
    sizes = {str(file): file.stat().st_size for file in files}
    if args.json:
        print(json.dumps({"model": args.name, "seed": args.seed, "files": sizes}))
    else:
        for file, size in sizes.items():
            print(f"{file}  {size / 1e6:,.1f} MB")
    return 0
