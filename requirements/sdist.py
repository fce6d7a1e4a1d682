"""`python requirements/sdist.py FOLDER`: the source distribution of this project, by the backend of pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import build_meta

if __name__ == "__main__":
    print(build_meta.build_sdist(str(Path(sys.argv[1]).resolve())))
