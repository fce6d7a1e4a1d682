"""The columns of a model as its artifact keeps them: a description without the tables' rows, for those who train it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from veltair.compiler.features.description_file import parse_description
from veltair.compiler.features.feature_description import FeatureDescription
from veltair.errors import ArtifactError, ModelError
from veltair.profiles.artifact.artifact_folder import COLUMNS, Artifact, file_digest

_PARTS = ("features", "tables", "columns", "inputs")


def keep_columns(description: FeatureDescription | None, folder: Path) -> str:
    """Write the columns into a folder that becomes an artifact, and return the file's digest; "" without columns."""
    if description is None or not description.columns:
        return ""
    parts = {part: [_without_none(entry) for entry in getattr(description, part)] for part in _PARTS}
    parts["features"] = [entry for entry in parts["features"] if entry["name"] not in description.texts]
    for table in parts["tables"]:  # rows are in the artifact's weights, as kernels want them
        table.pop("file", None)
        table |= {"seed": 0, "offset": 0}
    (folder / COLUMNS).write_bytes(tomli_w.dumps(parts).encode())
    return file_digest(folder / COLUMNS)


def columns_of(artifact: Artifact) -> FeatureDescription:
    """The description of an artifact's columns. Raises ArtifactError for an artifact that has none, or wrong ones."""
    path = artifact.path / COLUMNS
    if not artifact.manifest.columns_digest:
        raise ArtifactError(f"{artifact.path}: the model has no feature columns, or was compiled before they were kept")
    try:
        return parse_description(tomllib.loads(path.read_text("utf-8")), path)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ModelError) as error:
        raise ArtifactError(f"{path}: {error}") from None


def _without_none(entry: msgspec.Struct) -> dict[str, Any]:
    """The fields of a struct that are set, as TOML has them."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(member) for key, member in value.items() if member is not None}
        return [clean(member) for member in value] if isinstance(value, list | tuple) else value

    found: dict[str, Any] = clean(msgspec.to_builtins(entry))
    return found
