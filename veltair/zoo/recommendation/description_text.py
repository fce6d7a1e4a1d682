"""Feature descriptions (docs/features.md) as the text of a TOML file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

DescriptionEntry = Mapping[str, object]  # strings, numbers and lists of them
DescriptionEntries = dict[str, list[DescriptionEntry]]  # the entries of each key

ORDER = ("features", "tables", "columns", "inputs")


def format_toml(description: Mapping[str, Sequence[DescriptionEntry]]) -> str:
    """Returns the TOML text, one line for each key. JSON writes strings, numbers and lists of them as TOML does."""
    entries = [(key, entry) for key in ORDER for entry in description[key]]
    blocks = (
        "\n".join([f"[[{key}]]", *(f"{name} = {json.dumps(value)}" for name, value in entry.items())])
        for key, entry in entries
    )
    return "\n\n".join(blocks) + "\n"
