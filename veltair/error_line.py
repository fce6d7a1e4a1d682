"""How a command says what is wrong."""

from __future__ import annotations

import sys

LONGEST_LINE = 1000  # characters


def print_error(command: str, text: str) -> None:
    """Say on stderr what is wrong, in one line, whatever names an input has: a terminal obeys control characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[:LONGEST_LINE])
    print(f"veltair {command}: {line}{'…' if len(text) > LONGEST_LINE else ''}", file=sys.stderr)
