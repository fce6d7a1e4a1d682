"""Help, shell completion and the man page: all are made from the same parsers."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from veltair.cli import COMMANDS, build_parser, main
from veltair.commands.shell.manual import man_page

ELSEWHERE = (">", "|")  # where the shell's part of an example begins


@pytest.fixture(scope="module")
def parser() -> argparse.ArgumentParser:
    return build_parser()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_ends_with_examples_that_its_parser_takes(command: str, parser: argparse.ArgumentParser) -> None:
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    help_text = commands[command].format_help()
    examples = [line.strip() for line in help_text.splitlines() if line.startswith("  veltair ")]
    assert examples
    for example in examples:
        words = shlex.split(example)
        end = next((i for i, word in enumerate(words) if word in ELSEWHERE), len(words))
        assert parser.parse_args(words[1:end]).command == command


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_names_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert "find-peak" in script


def test_bash_completes_commands_options_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out

    def complete(*words: str) -> list[str]:
        line = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _shtab_veltair"
        ask = f'{script}\n{line}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
        return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()

    assert complete("veltair", "comp") == ["compile", "completion"]
    assert complete("veltair", "serve", "--gr") == ["--grpc"]
    assert complete("veltair", "load", "demo", "--engine", "ml") == ["mlperf"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish (Debian: apt-get install fish)")
def test_fish_completes_commands_options_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    script = tmp_path / "veltair.fish"
    script.write_text(capsys.readouterr().out)

    def complete(line: str) -> list[str]:
        command = ["fish", "--no-config", "--command", f"source {script}; complete --do-complete {shlex.quote(line)}"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.partition("\t")[0] for line in lines if line]

    assert complete("veltair comp") == ["compile", "completion"]
    assert complete("veltair serve --gr") == ["--grpc"]
    assert complete("veltair load demo --engine ") == ["builtin", "mlperf"]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other Pythons word some options otherwise")
def test_the_man_page_that_wheels_bring_is_that_of_the_parsers(
    parser: argparse.ArgumentParser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make man` writes it."""
    shipped = (Path(__file__).parents[3] / "docs" / "man" / "veltair.1").read_text("utf-8")
    for columns in ("40", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        assert man_page(parser) == shipped
        assert os.environ["COLUMNS"] == columns


def test_the_man_page_has_every_command_with_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["man"]) == 0
    page = capsys.readouterr().out
    assert page.startswith(".TH VELTAIR")
    assert all(f"veltair {command}" in page or f"\\,{command}\\/" in page for command in COMMANDS)
    assert r"\-\-find\-peak" in page
    assert r"veltair load demo" in page[page.index(".SH EXAMPLES") :]
