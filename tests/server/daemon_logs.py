"""Shows what daemons have logged where a test fails that has used them."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SHOWN_LINES = 80  # the last ones

_running: set[Path] = set()
_ended: set[Path] = set()  # since the test began


@contextmanager
def log_of_daemon(path: Path) -> Iterator[None]:
    """A daemon writes its log there, within this context."""
    _running.add(path)
    try:
        yield
    finally:
        _running.remove(path)
        _ended.add(path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """To be imported by a `conftest.py`. A daemon of a fixture runs still; one of the test itself has ended by now."""
    report = yield
    if report.failed:
        for path in sorted(_running | _ended):
            lines = path.read_text(errors="backslashreplace").splitlines()[-SHOWN_LINES:]
            report.sections.append((f"log of the daemon in {path.parent}", "\n".join(lines)))
    if call.when == "setup":
        _ended.clear()
    return report
