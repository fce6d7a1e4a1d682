"""The documents that people read first: what they promise must be there."""

from __future__ import annotations

import ast
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


def test_the_first_hour_is_eight_commands_that_were_run() -> None:
    folder = ROOT / "docs" / "tutorial"
    page = (folder / "first-hour.md").read_text("utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    shown = "".join(text for language, text in blocks if not language).rstrip("\n")
    recorded = [
        ast.literal_eval(pair.elts[1])
        for node in ast.parse((folder / "record_first_hour.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMANDS"
        for pair in node.value.elts
    ]
    assert len(recorded) <= 8
    assert "\n".join(recorded) == shown


def test_no_include_was_formatted_as_python() -> None:
    """`ruff format` takes a line that includes a file for a comparison where it stands in a block of Python."""
    pages = (ROOT / "docs").rglob("*.md")
    assert [page for page in pages if "--8 <" in page.read_text("utf-8")] == []


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
