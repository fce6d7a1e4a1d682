"""The documents that people read first: what they promise must be there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\((?!https?:|#|src:|mailto:)([^)#\s]+)")


def test_the_readme_fits_a_screen_before_its_commands_and_150_lines_in_all() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    first = "\n".join(lines[:25])
    assert "make demo" in first
    assert "make test" in first


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_lead_to_files(name: str) -> None:
    targets = LINK.findall((ROOT / name).read_text("utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_contributing_names_files_that_exist() -> None:
    """A path in backticks, such as `scheduler/policies/by_name.py`, is one of the repository."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = re.findall(r"`((?:[a-z_0-9]+/)+[a-z_0-9.]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_decision_has_its_three_parts() -> None:
    records = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert len(records) >= 25
    for record in records:
        headings = re.findall(r"^## (.*)$", record.read_text("utf-8"), re.MULTILINE)
        assert headings == ["Context", "Decision", "Consequence"], record.name


def test_the_glossary_gives_each_term_one_line_and_a_file() -> None:
    rows = re.findall(r"^\| (.+?) \| .+ \| (.+?) \|$", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    terms = [term for term, where in rows if term not in ("term", "---")]
    assert len(terms) >= 40
    assert len(set(terms)) == len(terms)
    assert all("](" in where for term, where in rows if term not in ("term", "---"))
