"""`veltair man`: the man page, made from the parsers of all commands. Wheels bring it as share/man/man1/veltair.1."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager

from argparse_manpage.manpage import Manpage

import veltair
from veltair.commands.shell import commands_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = """\
examples:
  veltair man | man -l -
  veltair man > ~/.local/share/man/man1/veltair.1"""


def run(args: argparse.Namespace) -> int:
    """Print the page in troff's man macros."""
    print(man_page(args.whole_parser()), end="")
    return 0


def man_page(parser: argparse.ArgumentParser) -> str:
    """The same text on each day, for a terminal of any width: a test compares it with the file that is shipped."""
    with _width("80"):
        page = Manpage(parser)
        page.description = "multi-tenant inference on one CPU machine"
        page.date, page.source, page.manual = "", f"veltair {veltair.__version__}", "User Commands"
        page.add_section("examples", "=", _examples(parser))  # the library leaves out the ends of the commands' helps
        return str(page)


@contextmanager
def _width(columns: str) -> Iterator[None]:
    """The width that argparse wraps at, which it takes from the environment."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = columns
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _examples(parser: argparse.ArgumentParser) -> str:
    commands = commands_of(parser).values()
    lines = [line for command in commands for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    return "\n".join([".nf", *(line.strip().replace("\\", r"\e").replace("-", r"\-") for line in lines), ".fi"])
