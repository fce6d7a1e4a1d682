"""The feature description: what ONNX cannot say of a recommendation model's inputs, as TOML (docs/features.md).

The semantics are TensorFlow's (tf.feature_column, tf.strings); where they leave a choice, it is documented there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np

from veltair.compiler.columns.tables import Count, Name, Small, Table, beside
from veltair.errors import ModelError

Interval = tuple[int, int]  # [low, high)

STEPS = ("hash", "boundaries", "vocabulary", "identity", "number")
# What each kind of feature may go through; a float or dense feature without a step is passed on as it is.
ALLOWED = {
    "int": ("hash", "boundaries", "vocabulary", "identity"),
    "float": ("boundaries", "copy"),
    "string": ("hash", "vocabulary", "number"),
    "tokens": ("hash", "vocabulary", "number"),
    "dense": ("copy",),
}


class Feature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One raw input. Shapes: int (B, width) int64; float (B,), dense (B, width) float32; string, tokens B strings."""

    name: Name
    kind: Literal["int", "float", "string", "tokens", "dense"]
    width: Small = 1
    missing: int | Literal[False] = -1  # int: this id counts as absent
    empty: Literal["drop", "keep"] = "drop"  # string, tokens: whether an empty one counts as absent
    separator: Annotated[str, msgspec.Meta(min_length=1, max_length=1)] = ","
    truncate: Count | None = None  # tokens: those beyond are not read
    max_bytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 256  # string, tokens: room for each row, on average

    @property
    def textual(self) -> bool:
        return self.kind in ("string", "tokens")

    @property
    def values(self) -> int | None:
        """The most values of a row; None where there is no bound."""
        return self.truncate if self.kind == "tokens" else self.width


class Guard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to an index outside of an interval: it is replaced by `value`, or removed."""

    replace: Interval | None = None
    value: int = 0
    remove: Interval | None = None

    @property
    def interval(self) -> Interval:
        found = self.remove or self.replace
        assert found is not None  # checked when it was read
        return found


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One feature's way to its numbers: a step to an index, guards, and the rows of a table combined."""

    feature: Name
    name: str = ""  # default: the feature's
    hash: Count | None = None  # buckets
    boundaries: tuple[float, ...] | None = None
    vocabulary: tuple[str | int, ...] | None = None
    vocabulary_file: str | None = None  # a key a line
    oov: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0  # buckets behind the vocabulary for what is not in it
    identity: Count | None = None  # ids below this
    number: Literal[True] | None = None
    default: Annotated[int, msgspec.Meta(ge=-(1 << 30), lt=(1 << 31) - 1)] = -1  # for any other key
    guards: tuple[Guard, ...] = ()
    table: str | None = None
    combiner: Literal["none", "sum", "mean", "sqrtn"] | None = None
    empty_row: Annotated[int, msgspec.Meta(ge=0)] | None = None  # stands in where nothing is left; default: zeros

    @property
    def step(self) -> str:
        """One of STEPS, or "copy"."""
        return next((step for step in STEPS if getattr(self, step) is not None), "copy")


class Joined(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of the ONNX model, (B, sum of widths): the outputs of these columns side by side."""

    name: Name
    columns: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A checked description: every name that it uses is there, every step fits its feature."""

    features: tuple[Feature, ...]
    columns: tuple[Column, ...]
    inputs: tuple[Joined, ...]
    tables: tuple[Table, ...] = ()
    path: Path = Path("features.toml")

    def feature(self, column: Column) -> Feature:
        return next(f for f in self.features if f.name == column.feature)

    def table(self, column: Column) -> Table | None:
        return next((t for t in self.tables if t.name == column.table), None)

    def width(self, column: Column) -> int:
        """Numbers that a column puts into its input for each row."""
        table = self.table(column)
        if table is not None:
            return table.dim
        return self.feature(column).width if column.step == "copy" else 1


def load(path: Path) -> Description:
    """Raises ModelError that names the file, the feature (table, column, input) and the key."""
    try:
        raw = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ModelError(f"{path}: not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ModelError(f"{path}: {error}") from None
    return parse(raw, path)


def parse(raw: dict[str, Any], path: Path) -> Description:
    """The same for content that was read already; `path` names it in messages and anchors relative paths."""
    if unknown := sorted(set(raw) - {"features", "tables", "columns", "inputs"}):
        raise ModelError(f"{path}: unknown key {unknown[0]!r}; expected features, tables, columns, inputs")
    features = _entries(raw, "features", Feature, path)
    tables = _entries(raw, "tables", Table, path)
    columns = tuple(
        msgspec.structs.replace(c, name=c.name or c.feature) for c in _entries(raw, "columns", Column, path)
    )
    inputs = _entries(raw, "inputs", Joined, path)
    for key, entries in (("features", features), ("columns", columns), ("inputs", inputs)):
        if not entries:
            raise ModelError(f"{path}: {key}: expected at least one [[{key}]]")
    for key, names in (
        ("features", [f.name for f in features]), ("tables", [t.name for t in tables]),
        ("columns", [c.name for c in columns]), ("inputs", [i.name for i in inputs]),
        ("inputs.columns", [name for joined in inputs for name in joined.columns]),
    ):  # fmt: skip
        _unique(names, key, path)
    known = {f.name: f for f in features}
    by_name = {t.name: t for t in tables}
    for feature in features:
        _check_feature(feature, path)
    for table in tables:
        if (table.file is None) == (table.seed is None):
            raise ModelError(f"{path}: table {table.name!r}: expected one of file and seed")
    read = tuple(_vocabulary_read(column, path) for column in columns)
    for column in read:
        if column.feature not in known:
            raise ModelError(f"{path}: column {column.name!r}: feature: there is no feature {column.feature!r}")
        if column.table is not None and column.table not in by_name:
            raise ModelError(f"{path}: column {column.name!r}: table: there is no table {column.table!r}")
        where = f"{path}: column {column.name!r} (feature {column.feature!r})"
        _check_column(column, known[column.feature], by_name.get(column.table or ""), where)
    named = {c.name for c in read}
    joined_names = {name for joined in inputs for name in joined.columns}
    if strange := sorted(joined_names - named):
        raise ModelError(f"{path}: inputs: columns: there is no column {strange[0]!r}")
    if idle := sorted(named - joined_names):
        raise ModelError(f"{path}: column {idle[0]!r}: no input joins it")
    return Description(features=features, tables=tables, columns=read, inputs=inputs, path=path)


Entry = TypeVar("Entry", Feature, Table, Column, Joined)


def _entries(raw: dict[str, Any], key: str, kind: type[Entry], path: Path) -> tuple[Entry, ...]:
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


def _unique(names: Iterable[str], key: str, path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"{path}: {key}: {name!r} stands twice")
        seen.add(name)


def _check_feature(feature: Feature, path: Path) -> None:
    where = f"{path}: feature {feature.name!r}"
    if feature.width > 1 and feature.kind not in ("int", "dense"):
        raise ModelError(f"{where}: width: a {feature.kind} feature has one value a row")
    if feature.truncate is not None and feature.kind != "tokens":
        raise ModelError(f"{where}: truncate: only tokens are cut off")
    if not feature.separator.isascii():
        raise ModelError(f"{where}: separator: expected one ASCII character, got {feature.separator!r}")


def _vocabulary_read(column: Column, path: Path) -> Column:
    if column.vocabulary_file is None:
        return column
    where = f"{path}: column {column.name!r} (feature {column.feature!r}): vocabulary_file"
    if column.vocabulary is not None:
        raise ModelError(f"{where}: stands beside vocabulary; expected one of them")
    try:
        lines = beside(path, column.vocabulary_file, where).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{where}: {error}") from None
    return msgspec.structs.replace(column, vocabulary=tuple(lines), vocabulary_file=None)


def _check_column(column: Column, feature: Feature, table: Table | None, where: str) -> None:
    given = [step for step in STEPS if getattr(column, step) is not None]
    if len(given) > 1:
        raise ModelError(f"{where}: expected one of {', '.join(STEPS)}, got {' and '.join(given)}")
    step, allowed = column.step, ALLOWED[feature.kind]
    if step not in allowed:
        expected = ", ".join(key for key in allowed if key != "copy") or "no step"
        got = "none" if step == "copy" else step
        raise ModelError(f"{where}: a {feature.kind} feature goes through {expected}; got {got}")
    if (table is None) != (step in ("copy", "number")):
        raise ModelError(f"{where}: table: " + (f"{step} needs one" if table is None else f"{step} reads none"))
    if table is None and (column.guards or column.empty_row is not None):
        raise ModelError(f"{where}: guards, empty_row: only an index has them")
    if table is not None and column.empty_row is not None and column.empty_row >= table.rows:
        raise ModelError(f"{where}: empty_row: table {table.name!r} has {table.rows} rows, got {column.empty_row}")
    if (column.oov and step != "vocabulary") or (column.oov and column.default != -1):
        raise ModelError(f"{where}: oov: only a vocabulary without a default has such buckets")
    if column.default != -1 and step not in ("vocabulary", "identity"):
        raise ModelError(f"{where}: default: only vocabulary and identity have one")
    if step == "boundaries":
        _check_boundaries(column, feature, where)
    if step == "vocabulary":
        assert column.vocabulary is not None
        keys, wanted = column.vocabulary, int if feature.kind == "int" else str
        if not keys or not all(type(key) is wanted for key in keys):
            raise ModelError(f"{where}: vocabulary: expected a list of {'integers' if wanted is int else 'strings'}")
        _unique([str(key) for key in keys], "vocabulary", Path(where))
        if len(keys) + column.oov >= 1 << 31:
            raise ModelError(f"{where}: oov: beyond 31 bits")
    many = feature.values is None or feature.values > 1
    if column.combiner == "none" and many and step != "copy":
        raise ModelError(f"{where}: combiner: several values a row need sum, mean or sqrtn")
    if step == "copy" and column.combiner not in (None, "none"):
        raise ModelError(f"{where}: combiner: values that are passed on have none")
    for place, guard in enumerate(column.guards):
        if (guard.replace is None) == (guard.remove is None):
            raise ModelError(f"{where}: guards[{place}]: expected one of replace and remove")
        low, high = guard.interval
        if not -(1 << 30) <= low < high < 1 << 31:
            raise ModelError(f"{where}: guards[{place}]: expected [low, high) with low < high within 31 bits")
        if not -(1 << 30) <= guard.value < (1 << 31) - 1:
            raise ModelError(f"{where}: guards[{place}]: value: beyond 31 bits")


def _check_boundaries(column: Column, feature: Feature, where: str) -> None:
    edges = column.boundaries or ()
    rounded = np.array(edges, np.float32)
    if not edges or np.isnan(rounded).any() or (rounded[1:] <= rounded[:-1]).any():
        raise ModelError(f"{where}: boundaries: expected float32 numbers that rise")
    if feature.width > 1:
        raise ModelError(f"{where}: boundaries: expected a feature of one value a row, got width {feature.width}")
