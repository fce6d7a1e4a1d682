"""Tables for terminals, files and pipes, in which no digit is ever cut.

A file or a pipe gets every column in full. A terminal that is too narrow first gets names shortened in their middle,
then fewer columns; a line below the table says which ones are missing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

UNBOUNDED = 1 << 16  # columns of a file or a pipe
GAP, NARROW_GAP = 2, 1  # columns between two columns of a table
LEAST_NAME = 8  # characters that a shortened name keeps
LINE_S = 10.0  # between two lines about the same work


def result_console() -> Console:
    """The console for results on stdout: as wide as its terminal, or as wide as it takes where there is none."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=UNBOUNDED)


def shorten(text: str, width: int) -> str:
    """A name of at most `width` characters, without its middle where it is longer.

    >>> shorten("layer4.2.conv3/Conv", 11)
    'layer…/Conv'
    """
    if len(text) <= width:
        return text
    if width < 2:
        return text[:width]
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def confirm(question: str) -> bool:
    """Ask on stderr, which is not where results go; only a yes is one. False where nobody can be asked."""
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `ResultTable`.

    >>> Column("p99\\nms", rank=2).is_name
    False
    """

    heading: str  # its lines stand below each other
    rank: int = 0  # the highest go first where a terminal is too narrow; 0 always stays
    is_name: bool = False  # on the left, and may be shortened; all others are numbers


@dataclass(slots=True)
class ResultTable:
    """Rows of names and numbers.

    >>> table = ResultTable((Column("tenant", is_name=True), Column("QPS"), Column("p99\\nms", rank=1)))
    >>> table.add("resnet50", "58.25", "12.5")
    >>> for line in table.lines(width=18):
    ...     print(line)
    tenant     QPS
    ──────────────
    resnet50 58.25
    not shown: p99 ms (a wider terminal, a file or --json has it)
    """

    columns: tuple[Column, ...]
    title: str = ""
    _rows: list[tuple[Text, ...]] = field(default_factory=list)

    def add(self, *cells: str | Text) -> None:
        """Add a row with one cell for each column."""
        if len(cells) != len(self.columns):
            raise ValueError(f"expected {len(self.columns)} cells, got {len(cells)}")
        self._rows.append(tuple(cell if isinstance(cell, Text) else Text(cell) for cell in cells))

    def print(self, console: Console) -> None:
        """Print what fits the console; numbers are whole."""
        for line in self.lines(console.width):
            console.print(line, soft_wrap=True)

    def lines(self, width: int) -> list[Text]:
        """The table in at most `width` columns, where short names and fewer columns make it fit."""
        shown = list(range(len(self.columns)))
        gap = GAP if self._natural_width(shown, GAP) <= width else NARROW_GAP
        while (widths := self._widths(shown, width, gap)) is None:
            shown.remove(max((i for i in shown if self.columns[i].rank), key=lambda i: (self.columns[i].rank, i)))
        found = [Text(self.title, "bold")] if self.title else []
        headings = {i: self.columns[i].heading.split("\n") for i in shown}
        height = max(map(len, headings.values()))
        for at in range(height):  # a heading of fewer lines stands at the bottom
            cells = {i: ["", *lines][max(0, at - height + len(lines) + 1)] for i, lines in headings.items()}
            found.append(self._line({i: Text(cell, "bold") for i, cell in cells.items()}, widths, gap))
        found.append(Text("─" * (sum(widths.values()) + gap * (len(shown) - 1)), "dim"))
        found += [self._line({i: row[i] for i in shown}, widths, gap) for row in self._rows]
        dropped = [c.heading.replace("\n", " ").strip() for i, c in enumerate(self.columns) if i not in shown]
        if dropped:
            what = (
                f"{', '.join(dropped)} (a wider terminal, a file or --json has {'it' if len(dropped) == 1 else 'them'})"
            )
            found.append(Text(f"not shown: {what}", "dim"))
        return found

    def _natural_width(self, shown: Sequence[int], gap: int) -> int:
        return sum(map(self._column_width, shown)) + gap * (len(shown) - 1)

    def _widths(self, shown: Sequence[int], width: int, gap: int) -> dict[int, int] | None:
        """The width of each column that is shown; None where fewer columns are to be shown."""
        widths = {i: self._column_width(i) for i in shown}
        over = self._natural_width(shown, gap) - width
        for i in sorted((i for i in shown if self.columns[i].is_name), key=lambda i: -widths[i]):
            cut = min(max(0, over), max(0, widths[i] - max(LEAST_NAME, self._heading_width(i))))
            widths[i] -= cut
            over -= cut
        return None if over > 0 and any(self.columns[i].rank for i in shown) else widths

    def _column_width(self, column: int) -> int:
        return max(self._heading_width(column), max((row[column].cell_len for row in self._rows), default=0))

    def _heading_width(self, column: int) -> int:
        return max(map(len, self.columns[column].heading.split("\n")))

    def _line(self, cells: dict[int, Text], widths: dict[int, int], gap: int) -> Text:
        parts = []
        for i, cell in cells.items():
            text, fill = cell, widths[i] - cell.cell_len
            if self.columns[i].is_name:
                text = cell if fill >= 0 else Text(shorten(cell.plain, widths[i]), cell.style)
                text = Text.assemble(text, " " * max(0, fill))
            else:
                text = Text.assemble(" " * max(0, fill), cell)
            parts.append(text)
        line = Text(" " * gap).join(parts)
        line.rstrip()
        return line


class ProgressLines:
    """A line now and then about long work, for what is no terminal: a log, a pipe.

    >>> lines = ProgressLines(every_s=0)
    >>> lines("search", 3, 12)  # doctest: +SKIP
    search: 3 of 12, 40 s so far
    """

    def __init__(self, every_s: float = LINE_S) -> None:
        self._every_s = every_s
        self._began = self._told = time.monotonic()
        self._what = ""

    def __call__(self, what: str, done: float, total: float | None) -> None:
        """Say how far the work is, where the last line was long enough ago or about something else."""
        now = time.monotonic()
        if what == self._what and now - self._told < self._every_s:
            return
        self._what, self._told = what, now
        of = "" if total is None else f" of {total:g}"
        print(f"{what}: {done:g}{of}, {now - self._began:.0f} s so far", file=sys.stderr, flush=True)
