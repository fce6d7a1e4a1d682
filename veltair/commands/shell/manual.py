"""`veltair man`: the man page, made from the parsers of all commands."""

from __future__ import annotations

import argparse

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
    parser: argparse.ArgumentParser = args.whole_parser()
    page = Manpage(parser)
    page.description = "multi-tenant inference on one CPU machine"
    page.source, page.manual = f"veltair {veltair.__version__}", "User Commands"
    page.add_section("examples", "=", _examples(parser))  # the library leaves out the ends of the commands' helps
    print(page, end="")
    return 0


def _examples(parser: argparse.ArgumentParser) -> str:
    commands = commands_of(parser).values()
    lines = [line for command in commands for line in (command.epilog or "").splitlines() if line.startswith("  ")]
    return "\n".join([".nf", *(line.strip().replace("\\", r"\e").replace("-", r"\-") for line in lines), ".fi"])
