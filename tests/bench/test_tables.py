"""The page of measurements is what its generator writes from the committed results."""

from __future__ import annotations

from bench import tables


def test_the_page_is_what_the_generator_writes() -> None:
    assert tables.PAGE.read_text("utf-8") == tables.page(), "run `python -m bench.tables`"
