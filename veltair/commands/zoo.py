"""`veltair zoo`: lists the models; `veltair zoo NAME --out FILE`: builds one with seeded weights.

Tables of recommendation models that do not fit into this machine's memory are cut; the command says which and to what.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from veltair.commands import refuse_to_overwrite
from veltair.errors import ConfigError
from veltair.terminal import Column, ResultTable, result_console
from veltair.zoo.recommendation.dlrm import DlrmShape
from veltair.zoo.recommendation.table_sizes import MEMORY_SHARE, TableCut
from veltair.zoo.registry import RECOMMENDERS, ZOO, table_cuts, write

_SHAPE = {
    "tables": "embedding tables",
    "dim": "floats of a row",
    "lookups": "rows summed per bag",
    "max_batch": "largest batch, stated in the model",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", type=_underscored, help=f"{', '.join(ZOO)}; none: list them")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the .onnx file to write (default NAME.onnx)")
    parser.add_argument("--force", action="store_true", help="overwrite the file that is there")
    parser.add_argument("--seed", type=int, default=0, help="of the weights (default 0)")
    parser.add_argument(
        "--rows",
        type=int,
        help=f"of each embedding table: exactly this number for dlrm (default {DlrmShape().rows}), for others at most"
        f" (default: as published, cut where that exceeds 1/{MEMORY_SHARE} of the memory)",
    )
    parser.add_argument("--json", action="store_true", help="print what there is, or what was written, as JSON")
    group = parser.add_argument_group("dlrm only")
    for name, text in _SHAPE.items():
        default = DlrmShape.__dataclass_fields__[name].default
        group.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{text} (default {default})")
    parser.epilog = """\
examples:
  veltair zoo
  veltair zoo resnet50 --out resnet50.onnx"""


def _underscored(name: str) -> str:
    """Accepts recom-e for recom_e."""
    return name.replace("-", "_")


def run(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in _SHAPE if getattr(args, name) is not None}
    if args.name is None:
        if args.out is not None or args.rows is not None or given:
            raise ConfigError(f"expected the NAME of the model to write: {', '.join(ZOO)}")
        return _list(args.json)
    rows = args.rows if args.name in RECOMMENDERS else None
    if args.rows is not None and rows is None:
        given["rows"] = args.rows
    shape = DlrmShape(**given) if given else None
    out = args.out or Path(f"{args.name}.onnx")
    for path in (out, out.with_suffix(".features.toml")) if args.name in RECOMMENDERS else (out,):
        refuse_to_overwrite(path, force=args.force)
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(args.name, total=None)
        files = write(
            args.name, out, args.seed, shape, lambda n, total: bar.update(task, completed=n, total=total), rows
        )
    sizes = {str(file): file.stat().st_size for file in files}
    smaller = table_cuts(args.name, rows)
    if args.json:
        facts = {"model": args.name, "seed": args.seed, "files": sizes}
        print(json.dumps(facts | ({"cut": [asdict(each) for each in smaller]} if smaller else {})))
    else:
        for file, size in sizes.items():
            print(f"{file}  {size / 1e6:,.1f} MB")
        _tell(smaller, rows)
    return 0


def _tell(smaller: Sequence[TableCut], rows: int | None) -> None:
    if not smaller:
        return
    reason = f"all tables may take 1/{MEMORY_SHARE} of this machine's memory" if rows is None else f"--rows {rows}"
    print(f"tables were cut ({reason}):")
    for each in smaller:
        names = each.first if each.first == each.last else f"{each.first} … {each.last}"
        print(f"  {names}: {each.rows:,} of {each.published:,} rows")


def _list(as_json: bool) -> int:
    if as_json:
        print(json.dumps({name: entry.facts for name, entry in ZOO.items()}))
        return 0
    names = Column("model", is_name=True), Column("input", is_name=True, rank=1), Column("source", is_name=True, rank=2)
    table = ResultTable((names[0], Column("parameters"), Column("GFLOPs"), *names[1:]))
    for name, entry in ZOO.items():
        table.add(name, f"{entry.parameters:,}", f"{entry.gflops:.4f}", entry.input, entry.source)
    table.print(result_console())
    return 0
