"""Signals to a command while it is loaded and while it runs, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Each waits by running: a signal between two lines is handled there, and `signal.pause()` would wait for the next one.
CLI = """
import sys
from veltair import cli
cli.COMMANDS["endless"] = ("endless_command", "never ends")
sys.exit(cli.main(["endless"]))
"""
LOADING = """
print("waits", flush=True)
while True:
    pass
"""
RUNNING = """
from pathlib import Path
from veltair.machine.scratch import ScratchFolder

def add_arguments(parser):
    pass

def run(args):
    with ScratchFolder("test"):
        print("waits", flush=True)
        while True:
            pass
"""


HALF_MADE = """
import asyncio

class HalfMade:
    def __init__(self):
        print("waits", flush=True)
        while True:
            pass
        self.stream = None

    def __del__(self):
        self.stream.close()

async def never_awaited():
    pass

def add_arguments(parser):
    pass

def run(args):
    coroutine = never_awaited()
    try:
        raise ValueError
    except ValueError:
        HalfMade()
"""


@contextmanager
def endless(folder: Path, module: str, ignored: signal.Signals | None = None) -> Iterator[subprocess.Popen[str]]:
    """The command once it waits."""
    (folder / "endless_command.py").write_text(module)
    environment = os.environ | {"PYTHONPATH": str(folder), "TMPDIR": str(folder)}
    before = None if ignored is None else signal.signal(ignored, signal.SIG_IGN)
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", CLI], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
    finally:
        if ignored is not None:
            signal.signal(ignored, before)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        yield process
        if process.poll() is None:
            process.kill()


NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_signal_while_a_command_is_loaded_is_one_line_or_none(tmp_path: Path, number: signal.Signals) -> None:
    with endless(tmp_path, LOADING) as process:
        process.send_signal(number)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (128 + number, "veltair: interrupted\n" if number == signal.SIGINT else "")


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_what_a_command_has_begun_is_tidied_up(tmp_path: Path, number: signal.Signals) -> None:
    with endless(tmp_path, RUNNING) as process:
        assert list(tmp_path.glob("veltair-scratch-*"))
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert errors == ("veltair endless: interrupted\n" if number == signal.SIGINT else "")
    assert not list(tmp_path.glob("veltair-scratch-*"))


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_what_is_half_made_says_nothing(tmp_path: Path, number: signal.Signals) -> None:
    with endless(tmp_path, HALF_MADE) as process:
        process.send_signal(number)
        _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert errors == ("veltair endless: interrupted\n" if number == signal.SIGINT else "")


def test_a_signal_that_is_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup."""
    with endless(tmp_path, RUNNING, ignored=signal.SIGHUP) as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
