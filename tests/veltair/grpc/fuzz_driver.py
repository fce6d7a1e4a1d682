"""Builds the C drivers of fuzz tests with the address and undefined-behaviour sanitizers.

A gcc without them, or none, is a failure: the package itself is built with gcc, which brings them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

FLAGS = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined"]
FLAGS += ["-fno-sanitize-recover=all", "-pthread"]


def compile_driver(driver: Path, folders: Sequence[Path], into: Path) -> Path:
    """The program of a driver with all C files of these folders."""
    program = into / driver.stem
    sources = [driver, *(file for folder in folders for file in sorted(folder.glob("*.c")))]
    included = [f"-I{folder}" for folder in folders]
    subprocess.run(["gcc", *FLAGS, *included, *map(str, sources), "-o", str(program)], check=True)
    return program
