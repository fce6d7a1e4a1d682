"""Where the benches find the repository and the command line of veltair, and how they write their results."""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"  # committed: JSON, each file with the environment it was measured in
DEMO = ROOT / "demo"  # models and artifacts that `make demo` and the benches write; not committed
SCENARIOS = ROOT / "scenarios"
CLI = [sys.executable, "-m", "veltair.cli"]


def result_path(text: str) -> Path:
    """The file that a bench is told to write, as a type of argparse: checked before anything is measured.

    Raises ArgumentTypeError where its folder does not exist, or it is a folder itself.
    """
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: expected a file in a folder that exists")
    return path


def write_whole(path: Path, content: str) -> None:
    """Write a file that is whole at any time: a run that is interrupted leaves the one before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".draft")
    draft.write_text(content, "utf-8")
    draft.replace(path)
