"""A section of `docs/measurements.md`, and what its tables begin with."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.paths import RESULTS


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, the text that says how it was measured, and a function that returns the Markdown below."""

    title: str
    text: str
    table: Callable[[], str]


def read(name: str) -> dict[str, Any]:
    """A result file by its name in `bench/results`, without the suffix."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    return found


def environment_line(environment: Mapping[str, Any]) -> str:
    """The machine and the versions that a result was measured with."""
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
    memory = f", {environment['memory_bytes'] / 1e9:.0f} GB" if "memory_bytes" in environment else ""
    isa = f" ({', '.join(environment['isa'])})" if "isa" in environment else ""
    cores = f"{environment['cores']} core{'s' * (environment['cores'] > 1)}"
    text = f"{environment['cpu']}{isa}, {cores}{memory}, Linux {environment['kernel']}, Python {environment['python']}"
    return f"*{text}; {versions}.*" if versions else f"*{text}.*"


def with_environment(name: str, table: Callable[[dict[str, Any]], str]) -> str:
    found = read(name)
    return f"{environment_line(found['environment'])}\n\n{table(found)}"
