"""`veltair cache`: shows what compiles have kept for the next one, bounds its size, or clears it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from veltair.errors import ConfigError
from veltair.profiles.cache.cache_folder import CacheFolder, cache_path, parse_size
from veltair.terminal import Column, ResultTable, result_console

_MEANING = {
    "objects": "compiled kernels",
    "timings": "latency tables of kernels on a machine",
    "versions": "kernels that are right with certain weights",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("show", "clear", "limit"),
        default="show",
        help="show: how much there is (default); clear: remove it; limit: keep at most SIZE from now on",
    )
    parser.add_argument("size", nargs="?", metavar="SIZE", help="of limit: such as 500M or 2G")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.epilog = """\
examples:
  veltair cache
  veltair cache limit 500M
  veltair cache clear

It lies in $VELTAIR_CACHE, by default $XDG_CACHE_HOME/veltair. What was not used for longest goes first."""


def run(args: argparse.Namespace) -> int:
    """Do it, and show what there is afterwards."""
    if (args.action == "limit") != (args.size is not None):
        raise ConfigError("expected `cache limit SIZE`, `cache show` or `cache clear`")
    folder = CacheFolder(cache_path())
    if args.action == "clear":
        folder.clear()
    elif args.action == "limit":
        folder.set_limit(parse_size(args.size))
    usage = folder.usage()
    total = sum(kind.bytes for kind in usage.values())
    if args.json:
        kinds = {name: asdict(kind) for name, kind in usage.items()}
        print(json.dumps({"path": str(folder.path), "bytes": total, "limit_bytes": folder.limit_bytes, "kinds": kinds}))
        return 0
    table = ResultTable((Column("kept", is_name=True), Column("entries"), Column("MB"), Column("what", is_name=True)))
    for name, kind in usage.items():
        table.add(name, f"{kind.entries:,}", f"{kind.bytes / 1e6:,.1f}", _MEANING[name])
    console = result_console()
    table.print(console)
    line = f"{folder.path}: {total / 1e6:,.1f} MB of {folder.limit_bytes / 1e6:,.1f} MB"
    console.print(line, markup=False, soft_wrap=True)
    return 0
