"""The page of measurements is what its generator writes from the committed results."""

from __future__ import annotations

from bench import readme_table, tables


def test_the_page_is_what_the_generator_writes() -> None:
    assert tables.PAGE.read_text("utf-8") == tables.page(), "run `python -m bench.tables`"


def test_the_readme_has_the_present_table() -> None:
    assert readme_table.README.read_text("utf-8") == readme_table.readme(), "run `python -m bench.readme_table`"
