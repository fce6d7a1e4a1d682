"""`veltair zoo`: lists the models; `veltair zoo NAME --out FILE`: builds one with seeded weights."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from veltair.errors import ConfigError
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
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"{', '.join(ZOO)}; none: list them")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the .onnx file to write (default NAME.onnx)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    parser.add_argument("--json", action="store_true", help="print what there is, or what was written, as JSON")
    group = parser.add_argument_group("dlrm only")
    for name, text in _SHAPE.items():
        default = DlrmShape.__dataclass_fields__[name].default
        group.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{text} (default {default})")


def run(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in _SHAPE if getattr(args, name) is not None}
    if args.name is None:
        if args.out is not None or given:
            raise ConfigError(f"expected the NAME of the model to write: {', '.join(ZOO)}")
        return _list(args.json)
    shape = DlrmShape(**given) if given else None
    out = args.out or Path(f"{args.name}.onnx")
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(args.name, total=None)
        files = write(args.name, out, args.seed, shape, lambda n, total: bar.update(task, completed=n, total=total))
    sizes = {str(file): file.stat().st_size for file in files}
    if args.json:
        print(json.dumps({"model": args.name, "seed": args.seed, "files": sizes}))
    else:
        for file, size in sizes.items():
            print(f"{file}  {size / 1e6:,.1f} MB")
    return 0


def _list(as_json: bool) -> int:
    if as_json:
        print(json.dumps({name: asdict(entry) for name, entry in ZOO.items()}))
        return 0
    table = Table(*("model", "parameters", "GFLOPs", "input", "source"), box=None, pad_edge=False)
    for column in table.columns[1:3]:
        column.justify = "right"
    for name, entry in ZOO.items():
        table.add_row(name, f"{entry.parameters:,}", f"{entry.gflops:.4f}", entry.input, entry.source)
    Console().print(table)
    return 0
