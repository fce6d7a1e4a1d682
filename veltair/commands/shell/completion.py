"""`veltair completion`: a script by which a shell completes the commands, made from their parsers."""

from __future__ import annotations

import argparse

import shtab

from veltair.commands.shell import commands_of

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.epilog = """\
examples:
  veltair completion bash > ~/.local/share/bash-completion/completions/veltair
  veltair completion zsh > ~/.zfunc/_veltair
  veltair completion fish > ~/.config/fish/completions/veltair.fish

~/.zfunc has to be on zsh's fpath before compinit runs."""


def run(args: argparse.Namespace) -> int:
    """Print the script. The parsers of all commands are loaded for it, which takes seconds; completing does not."""
    parser: argparse.ArgumentParser = args.whole_parser()
    _complete_files(parser)
    print(shtab.complete(parser, args.shell))
    return 0


def _complete_files(parser: argparse.ArgumentParser) -> None:
    """Files for every argument whose value is a path, or may be one."""
    for command in commands_of(parser).values():
        _complete_files(command)
    for action in parser._actions:
        if "FILE" in (label := str(action.metavar or "")) or any(
            word in label
            for word in ("DIR", "ARTIFACT", "CONFIG", "SCENARIO", ".onnx", ".toml", ".json", ".npz", "LOG")
        ):
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # where shtab looks for it
