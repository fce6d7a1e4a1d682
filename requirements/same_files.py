"""`python requirements/same_files.py A.whl B.whl`: fails where a wheel lacks a file of the other."""

from __future__ import annotations

import sys
from pathlib import Path
from zipfile import ZipFile


def only_in_one(one: Path, other: Path) -> set[str]:
    """Names of files that one of the wheels has and the other has not."""
    with ZipFile(one) as first, ZipFile(other) as second:
        return set(first.namelist()) ^ set(second.namelist())


if __name__ == "__main__":
    missing = only_in_one(Path(sys.argv[1]), Path(sys.argv[2]))
    if missing:
        sys.exit(f"files of one wheel that the other lacks: {', '.join(sorted(missing))}")
