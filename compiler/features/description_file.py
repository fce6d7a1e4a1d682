"""Reads feature descriptions from TOML, and checks that every name is defined and every step fits its feature."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from veltair.compiler.features.column_checks import (
    check_column,
    check_cross,
    check_parts,
    check_splitting,
    check_unique,
)
from veltair.compiler.features.feature_description import (
    ColumnInput,
    Feature,
    FeatureColumn,
    FeatureDescription,
    feature_of,
)
from veltair.compiler.features.feature_tables import FeatureTable, resolve_in_folder
from veltair.errors import ModelError


def load_description(path: Path) -> FeatureDescription:
    """The description in a TOML file.

    Raises ModelError that names the file, the feature (table, column, input) and the key.
    """
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ModelError(f"{path}: {error}") from None
    return parse_description(raw, path)


def parse_description(raw: dict[str, Any], path: Path) -> FeatureDescription:
    """The description in parsed TOML; `path` names it in messages, and relative paths begin at its folder."""
    if unknown := sorted(set(raw) - {"features", "tables", "columns", "inputs"}):
        raise ModelError(f"{path}: unknown key {unknown[0]!r}; expected features, tables, columns, inputs")
    features = _convert_entries(raw, "features", Feature, path)
    tables = _convert_entries(raw, "tables", FeatureTable, path)
    columns = tuple(
        msgspec.structs.replace(c, name=c.name or c.feature)
        for c in _convert_entries(raw, "columns", FeatureColumn, path)
    )
    inputs = _convert_entries(raw, "inputs", ColumnInput, path)
    for key, entries in (("features", features), ("columns", columns), ("inputs", inputs)):
        if not entries:
            raise ModelError(f"{path}: {key}: expected at least one [[{key}]]")
    named = {
        "features": [f.name for f in features],
        "tables": [t.name for t in tables],
        "columns": [c.name for c in columns],
        "inputs": [i.name for i in inputs],
        "inputs.columns": [name for joined in inputs for name in joined.columns],
    }
    for key, names in named.items():
        check_unique(names, key, path)
    known = {f.name: f for f in features}
    by_name = {t.name: t for t in tables}
    for feature in features:
        _check_feature(feature, path)
    for table in tables:
        if (table.file is None) == (table.seed is None):
            raise ModelError(f"{path}: table {table.name!r}: expected one of file and seed")
    read = tuple(_read_vocabulary_file(column, path) for column in columns)
    for column in read:
        if column.feature not in known:
            raise ModelError(f"{path}: column {column.name!r}: feature: there is no feature {column.feature!r}")
        if column.table is not None and column.table not in by_name:
            raise ModelError(f"{path}: column {column.name!r}: table: there is no table {column.table!r}")
        where = f"{path}: column {column.name!r} (feature {column.feature!r})"
        check_cross(column, known, where)
        check_splitting(column, known[column.feature], where)
        read_as = feature_of(column, features)
        if column.cross_parts:  # whatever its parts are, it hashes values like any other
            read_as = msgspec.structs.replace(read_as, kind="int")
        check_column(column, read_as, by_name.get(column.table or ""), where)
        check_parts(column, known, where)
    defined = {c.name for c in read}
    joined_names = {name for joined in inputs for name in joined.columns}
    if strange := sorted(joined_names - defined):
        raise ModelError(f"{path}: inputs: columns: there is no column {strange[0]!r}")
    by_column = {c.name: c for c in read}
    for joined in inputs:
        members = [by_column[name] for name in joined.columns]
        number = next((c for c in members if not c.gives_ids and not c.gives_counts), None)
        if number is not None and (ids := next((c for c in members if c.gives_ids), None)) is not None:
            what = f"column {ids.name!r} gives ids (it has no table), {number.name!r} numbers"
            raise ModelError(f"{path}: input {joined.name!r}: {what}")
    if idle := sorted(defined - joined_names):
        raise ModelError(f"{path}: column {idle[0]!r}: no input joins it")
    return FeatureDescription(features=features, tables=tables, columns=read, inputs=inputs, path=path)


Entry = TypeVar("Entry", Feature, FeatureTable, FeatureColumn, ColumnInput)


def _convert_entries(raw: dict[str, Any], key: str, kind: type[Entry], path: Path) -> tuple[Entry, ...]:
    entries = raw.get(key, [])
    if not isinstance(entries, list):
        raise ModelError(f"{path}: {key}: expected [[{key}]], a list of tables")
    found = []
    for position, entry in enumerate(entries):
        label = entry.get("name", entry.get("feature")) if isinstance(entry, dict) else None
        who = f"{key.removesuffix('s')} {label!r}" if isinstance(label, str) else f"{key}[{position}]"
        try:
            found.append(msgspec.convert(entry, kind))
        except msgspec.ValidationError as error:
            what, _, where = str(error).partition(" - at `$")
            place = where.rstrip("`").lstrip(".")
            raise ModelError(f"{path}: {who}: {place + ': ' if place else ''}{what[0].lower()}{what[1:]}") from None
    return tuple(found)


def _check_feature(feature: Feature, path: Path) -> None:
    where = f"{path}: feature {feature.name!r}"
    if feature.width > 1 and feature.kind == "tokens":
        raise ModelError(f"{where}: width: a {feature.kind} feature has one value a row")
    if feature.truncate is not None and feature.kind != "tokens":
        raise ModelError(f"{where}: truncate: only tokens are cut off")
    if not feature.separator.isascii():
        raise ModelError(f"{where}: separator: expected one ASCII character, got {feature.separator!r}")
    if not feature.separator and feature.kind == "tokens" and feature.empty == "keep":
        raise ModelError(f'{where}: empty: between white space (separator "") no token is empty; expected "drop"')


def _read_vocabulary_file(column: FeatureColumn, path: Path) -> FeatureColumn:
    if column.vocabulary_file is None:
        return column
    where = f"{path}: column {column.name!r} (feature {column.feature!r}): vocabulary_file"
    if column.vocabulary is not None:
        raise ModelError(f"{where}: stands beside vocabulary; expected one of them")
    try:
        lines = resolve_in_folder(path, column.vocabulary_file, where).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{where}: {error}") from None
    return msgspec.structs.replace(column, vocabulary=tuple(lines), vocabulary_file=None)
