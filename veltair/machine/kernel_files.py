"""Reading the text files in which Linux shows its facts (`/proc`, `/sys`), and their common formats.

The readers of this package take `root`, the directory in which `proc` and `sys` are looked up, so that tests can
describe machines that we do not have.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path("/")


def read_text(path: Path) -> str:
    """The file's text; empty when it is absent, unreadable or not text."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def parse_size(text: str) -> int:
    """Bytes of a size such as `2048K`; 0 for text that is not a size (`max`).

    >>> parse_size("2048K"), parse_size("7"), parse_size("max")
    (2097152, 7, 0)
    """
    size = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    return int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]] if size else 0


def parse_bracketed(text: str) -> str:
    """The word in brackets, which is how the kernel marks the chosen one; empty when there is none.

    >>> parse_bracketed("always [madvise] never")
    'madvise'
    """
    word = re.search(r"\[(\w+)\]", text)
    return word[1] if word else ""
