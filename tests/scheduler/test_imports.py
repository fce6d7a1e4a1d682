"""The law: the scheduler knows the standard library, numpy, veltair.types and veltair.errors, and nothing else."""

import ast
import sys
from pathlib import Path

import pytest

import veltair.scheduler

FILES = sorted(Path(veltair.scheduler.__file__).parent.glob("**/*.py"))
IMPURE = {"asyncio", "time", "datetime", "random", "secrets", "os", "socket", "threading", "subprocess", "tomllib"}


def imported(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def lawful(name: str) -> bool:
    top = name.split(".")[0]
    if top == "veltair":
        return name in {"veltair.types", "veltair.errors"} or name.startswith("veltair.scheduler.")
    if name.startswith("numpy.random"):
        return False
    return top == "numpy" or (top in sys.stdlib_module_names and top not in IMPURE)


def test_the_files_are_found():
    assert {"scheduler.py", "by_name.py", "interference.py"} <= {path.name for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_imports(path):
    assert {name for name in imported(path.read_text()) if not lawful(name)} == set()


@pytest.mark.parametrize(
    "line",
    [
        "import tvm",
        "import time",
        "import asyncio.events",
        "from random import random",
        "import numpy.random",
        "from veltair import config",
        "from veltair.server.engine.engine import Engine",
        "from . import costs",
        "from numpy.random import default_rng",
    ],
)
def test_the_law_bites(line):
    assert not all(lawful(name) for name in imported(line))
