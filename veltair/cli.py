"""The command line: `veltair COMMAND …`. A command's module is imported only when it is called."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Collection

import veltair
from veltair.ending_signals import ENDING, free_what_was_interrupted, interruptible_at_once, tidied_up
from veltair.error_line import print_error
from veltair.errors import UserError, VeltairError

# name -> (module with add_arguments(parser) and run(args) -> exit code, one line of help)
COMMANDS = {
    "compile": ("veltair.commands.compile", "compile an ONNX model into an artifact"),
    "inspect": ("veltair.commands.inspect", "show the layers and code versions of an artifact"),
    "verify": ("veltair.commands.verify", "compare every code version with ONNX Runtime"),
    "bench": ("veltair.commands.bench", "time an artifact beside ONNX Runtime and OpenVINO"),
    "serve": ("veltair.commands.serve", "serve artifacts, or the models of a configuration"),
    "token": ("veltair.commands.token", "make a bearer token for a client of the daemon"),
    "ray": ("veltair.ray.command", "write a configuration of Ray Serve, for many machines"),
    "load": ("veltair.commands.load", "drive a daemon with an open-loop load, or find its peak"),
    "plan": ("veltair.commands.plan", "explain the layer-blocks that would be formed"),
    "profile": ("veltair.commands.profile", "time whole models, or fit the interference proxy to hardware counters"),
    "doctor": ("veltair.commands.doctor", "say what this machine offers"),
    "query": ("veltair.commands.query", "ask a served model once, and show the answer with its times"),
    "init": ("veltair.commands.init", "write a commented configuration"),
    "zoo": ("veltair.commands.zoo", "write a model of the zoo as ONNX"),
    "cache": ("veltair.commands.kept.cache", "show, bound or clear what compiles keep for the next one"),
    "simulate": ("veltair.commands.simulate", "run a scenario in virtual time on a machine that is not here"),
    "replay": ("veltair.commands.replay", "replay an event log and compare the decisions"),
    "demo": ("veltair.commands.demo", "build, compile, serve and load the three demo models"),
    "completion": ("veltair.commands.shell.completion", "print a script by which a shell completes the commands"),
    "man": ("veltair.commands.shell.manual", "print the man page"),
}

OWN_SIGNALS = ("serve",)  # it drains; and a service manager takes the code 143 for a failure, and SIGTERM for none

FIRST_STEPS = """\
veltair serves several models on one CPU machine, each within a latency target of its own.

  veltair demo                                          three models of ours, compiled, served and loaded
  veltair compile model.onnx --out artifacts/model      a model of yours
  veltair serve artifacts/model                         serve it; the dashboard's address is printed
  veltair query grpc://127.0.0.1:8001 model --random    ask it once
  veltair doctor                                        what this machine offers

veltair --help lists all commands, veltair COMMAND --help explains one."""


def build_parser(loaded: Collection[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of the command line; commands that are not in `loaded` have a name and a summary alone.

    >>> build_parser(()).prog
    'veltair'
    """
    parser = argparse.ArgumentParser(prog="veltair", description="Multi-tenant inference on one CPU machine.")
    parser.add_argument("--version", action="version", version=f"veltair {veltair.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (path, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,  # an example is a line
        )
        if name in loaded:
            module = importlib.import_module(path)
            module.add_arguments(command)
            command.set_defaults(run=module.run, whole_parser=build_parser)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0 success, 1 a check failed, 2 a bad input or disk, 130 interrupted.

    Raises SystemExit with 143, 129 or 131 at SIGTERM, SIGHUP or SIGQUIT.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() != "utf-8":
        sys.stdout.reconfigure(errors="replace")  # ASCII and Latin-1 do not have what tables are drawn with
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        print(FIRST_STEPS)
        return 0
    called = next((a for a in arguments if not a.startswith("-")), None)
    with interruptible_at_once("veltair", () if called in OWN_SIGNALS else ENDING):
        args = build_parser(() if called is None else (called,)).parse_args(arguments)
    try:
        with contextlib.nullcontext() if args.command in OWN_SIGNALS else tidied_up():
            code: int = args.run(args)
    except UserError as error:
        print_error(args.command, str(error))
        return 2
    except VeltairError as error:
        print_error(args.command, str(error))
        return 1
    except SystemExit as ended:
        free_what_was_interrupted(ended)
        raise
    except KeyboardInterrupt as interrupt:
        free_what_was_interrupted(interrupt)
        print_error(args.command, "interrupted")
        return 128 + signal.SIGINT
    except BrokenPipeError:
        return 1
    except OSError as error:  # a full disk, a folder that nobody may write, …
        if error.errno is None:
            raise
        print_error(args.command, f"{error.filename}: {error.strerror}" if error.filename else os.strerror(error.errno))
        return 2
    return code


if __name__ == "__main__":
    raise SystemExit(main())
