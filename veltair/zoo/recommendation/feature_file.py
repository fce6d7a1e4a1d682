"""Feature descriptions (docs/features.md) as the text of a TOML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Entry = Mapping[str, object]  # strings, numbers and lists of them
Description = dict[str, list[Entry]]  # the entries of each key

ORDER = ("features", "tables", "columns", "inputs")


def toml(description: Mapping[str, Sequence[Entry]]) -> str:
    """One line a key. JSON writes strings, numbers and lists of them as TOML does."""
    entries = [(key, entry) for key in ORDER for entry in description[key]]
    blocks = (
        "\n".join([f"[[{key}]]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items())])
        for key, entry in entries
    )
    return "\n\n".join(blocks) + "\n"
