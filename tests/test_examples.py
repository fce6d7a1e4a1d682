"""The examples in docstrings run: every `>>>` in the packages is a test."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import veltair

FOLDERS = {"veltair": "veltair", "veltair.compiler": "compiler", "veltair.profiles": "profiles"}
FOLDERS |= {"veltair.scheduler": "scheduler", "veltair.server": "server", "veltair.loadgen": "loadgen"}
ROOT = Path(veltair.__file__).resolve().parent.parent


def modules_with_examples() -> list[str]:
    """Names of the modules whose source holds an example."""
    found = []
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in path.read_text("utf-8"):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                found.append(".".join([package, *(part for part in parts if part != "__init__")]))
    return found


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert outcome.attempted > 0
    assert outcome.failed == 0
