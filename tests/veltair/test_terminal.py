"""Tables keep every digit, whatever the width and the rows."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from veltair.terminal import Column, ProgressLines, ResultTable, result_console, shorten

COLUMNS = (
    Column("tenant", is_name=True),
    Column("served\nQPS"),
    Column("p50\nms", rank=2),
    Column("p99\nms", rank=1),
    Column("refused"),
)
names = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1, max_size=60)
numbers = st.integers(0, 10**12).map(str) | st.floats(0, 1e9).map("{:.2f}".format)
rows = st.lists(st.tuples(names, numbers, numbers, numbers, numbers), min_size=1, max_size=5)


def table_of(listed: list[tuple[str, ...]]) -> ResultTable:
    table = ResultTable(COLUMNS)
    for row in listed:
        table.add(*row)
    return table


@given(rows, st.integers(10, 200))
def test_each_shown_number_is_whole_and_those_that_matter_are_shown(listed: list[tuple[str, ...]], width: int) -> None:
    lines = [line.plain for line in table_of(listed).lines(width)]
    dropped = lines[-1] if lines[-1].startswith("not shown: ") else ""
    for row, line in zip(listed, lines[3:], strict=False):
        for column, number in zip(COLUMNS[1:], row[1:], strict=True):
            if column.heading.replace("\n", " ") not in dropped:
                assert number in line.split()
        assert "served QPS" not in dropped and "refused" not in dropped


@given(rows, st.integers(10, 200))
def test_it_fits_wherever_a_smaller_table_can(listed: list[tuple[str, ...]], width: int) -> None:
    table = table_of(listed)
    least = max(len(line) for line in table.lines(1) if not line.plain.startswith("not shown: "))
    drawn = [line for line in table.lines(width) if not line.plain.startswith("not shown: ")]
    assert max(map(len, drawn)) <= max(width, least)


@given(rows)
def test_a_file_gets_everything(listed: list[tuple[str, ...]]) -> None:
    lines = [line.plain for line in table_of(listed).lines(1 << 16)]
    assert [line.split() for line in lines[3:]] == [list(row) for row in listed]


@given(names, st.integers(3, 80))
def test_a_short_name_keeps_both_ends(name: str, width: int) -> None:
    short = shorten(name, width)
    assert len(short) == min(len(name), width)
    assert short[0] == name[0] and short[-1] == name[-1]


def test_what_is_no_terminal_has_no_width(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    result_console().print("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"


def test_a_wrong_number_of_cells_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected 5 cells, got 1"):
        ResultTable(COLUMNS).add("x")


def test_printed_lines_are_neither_wrapped_nor_cut() -> None:
    console = Console(file=io.StringIO(), width=12)
    table_of([("resnet50", "123456.5", "1.0", "2.0", "33")]).print(console)
    assert "123456.5" in console.file.getvalue()  # type: ignore[attr-defined]


def test_lines_about_long_work_come_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines(every_s=3600)
    for done in range(100):
        lines("search", done, 100)
    lines("build", 0, None)
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == ["search: 0 of 100", "build: 0"]
