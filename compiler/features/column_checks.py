"""Checks the columns of a description: whether their steps, combiners, parts and crosses fit what they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path

import numpy as np

from veltair.compiler.features.column_ranges import index_range
from veltair.compiler.features.feature_description import (
    CHARACTERS,
    INDEX_STEPS,
    STEPS,
    STEPS_OF_KIND,
    ColumnStep,
    Feature,
    FeatureColumn,
)
from veltair.compiler.features.feature_tables import FeatureTable
from veltair.compiler.features.hashed_values import white_space_without
from veltair.errors import ModelError

MOST_DISTINCT = 1 << 20  # indices of a column in which each counts once: a row's are noted in as many bits
MOST_COMBINATIONS = 4096  # of the values of a row that are crossed


def check_unique(names: Iterable[str], key: str, path: Path) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ModelError(f"{path}: {key}: {name!r} appears twice")
        seen.add(name)


def check_column(column: FeatureColumn, feature: Feature, table: FeatureTable | None, where: str) -> None:
    given = [step for step in STEPS if getattr(column, step) is not None]
    if len(given) > 1:
        raise ModelError(f"{where}: expected one of {', '.join(STEPS)}, got {' and '.join(given)}")
    step, allowed = column.step, STEPS_OF_KIND[feature.kind]
    if step not in allowed:
        expected = ", ".join(key for key in allowed if key is not ColumnStep.COPY) or "no step"
        got = "none" if step is ColumnStep.COPY else step
        raise ModelError(f"{where}: a {feature.kind} feature goes through {expected}; got {got}")
    if table is not None and step not in INDEX_STEPS:
        raise ModelError(f"{where}: table: {step} reads none")
    if column.is_keyed and not (column.hash or column.oov):
        raise ModelError(f"{where}: strong_key, remainder: only hash and oov have buckets")
    if column.is_keyed and (column.cross_parts or (column.remainder and column.strong_key is not None)):
        raise ModelError(f"{where}: expected one of cross, strong_key and remainder")
    if column.remainder and feature.kind != "int":
        raise ModelError(f"{where}: remainder: expected an int feature, got {feature.kind}")
    if (column.case or column.strip) and (
        not feature.is_text
        or step not in (ColumnStep.HASH, ColumnStep.VOCABULARY)
        or column.parts
        or column.cross_parts
    ):
        raise ModelError(f"{where}: case, strip: expected hash or vocabulary of one text, neither joined nor crossed")
    if (column.remove or column.keep) and (
        not feature.is_text or step is not ColumnStep.VOCABULARY or column.oov or column.parts
    ):
        raise ModelError(f"{where}: remove, keep: expected a vocabulary of text without oov and parts")
    if column.cross_parts and step is not ColumnStep.HASH:
        raise ModelError(f"{where}: {'cross' if column.cross else 'crossed'}: expected hash, the number of buckets")
    if column.guards and step not in INDEX_STEPS:
        raise ModelError(f"{where}: guards: only an index has them")
    if column.empty_row is not None and table is None:
        raise ModelError(f"{where}: empty_row: only rows of a table have one")
    if (column.pad or column.first_id) and not column.gives_ids:
        raise ModelError(f"{where}: pad, first_id: only ids have them, which columns without a table give")
    if table is not None and column.empty_row is not None and column.empty_row >= table.rows:
        raise ModelError(f"{where}: empty_row: table {table.name!r} has {table.rows} rows, got {column.empty_row}")
    if (column.oov and step is not ColumnStep.VOCABULARY) or (column.oov and column.default != -1):
        raise ModelError(f"{where}: oov: only a vocabulary without a default has such buckets")
    if column.default != -1 and step not in (ColumnStep.VOCABULARY, ColumnStep.IDENTITY, ColumnStep.BOUNDARIES):
        raise ModelError(f"{where}: default: only vocabulary, identity and boundaries have one")
    if step is ColumnStep.BOUNDARIES:
        _check_boundaries(column, feature, where)
    if step is ColumnStep.VOCABULARY:
        _check_keys(column.vocabulary or (), column.oov, feature, where)
    _check_combiner(column, feature, where)
    _check_distinct(column, where)
    for place, guard in enumerate(column.guards):
        if (guard.replace is None) == (guard.remove is None):
            raise ModelError(f"{where}: guards[{place}]: expected one of replace and remove")
        low, high = guard.interval
        if not -(1 << 30) <= low < high < 1 << 31:
            raise ModelError(f"{where}: guards[{place}]: expected [low, high) with low < high within 31 bits")
        if not -(1 << 30) <= guard.value < (1 << 31) - 1:
            raise ModelError(f"{where}: guards[{place}]: value: beyond 31 bits")


def check_splitting(column: FeatureColumn, feature: Feature, where: str) -> None:
    if column.separator is None:
        if column.truncate is not None:
            raise ModelError(f"{where}: truncate: only a column with a separator has tokens of its own")
    elif feature.kind != "string" or feature.width > 1 or column.parts or column.cross_parts:
        raise ModelError(f"{where}: separator: expected a string feature of one text a row, neither joined nor crossed")
    elif column.separator == CHARACTERS:
        if column.keep or column.strip:
            raise ModelError(f"{where}: separator: characters: neither keep nor strip is known before they are decoded")
        return
    elif not column.separator.isascii():
        raise ModelError(f"{where}: separator: expected one ASCII character, got {column.separator!r}")
    if column.remove and column.keep:
        raise ModelError(f"{where}: expected one of remove and keep")
    if not (column.remove + column.keep).isascii():
        raise ModelError(f"{where}: remove, keep: expected ASCII characters")
    separators = column.separator.encode() if column.separator else white_space_without(b"")
    if column.separator is not None and not set(separators) - set(column.removed_bytes):
        raise ModelError(f"{where}: separator: {column.separator!r} is left out before the text is split")


def _check_combiner(column: FeatureColumn, feature: Feature, where: str) -> None:
    many, given = feature.most_values is None or feature.most_values > 1, column.combiner
    if given == "sequence" and column.step not in INDEX_STEPS:
        raise ModelError(f"{where}: combiner: only rows and ids make a sequence")
    if (given == "sequence" or column.step is ColumnStep.MASK) and feature.most_values is None:
        raise ModelError(f"{where}: feature {feature.name!r} needs truncate: the length of a sequence")
    if column.gives_ids and many and given != "sequence":
        raise ModelError(f'{where}: combiner: several ids a row are passed on as a "sequence"; or table is missing')
    if given == "none" and many and column.step != "copy":
        raise ModelError(f"{where}: combiner: several values a row need sum, mean, sqrtn or sequence")
    if given not in (None, "none", "sequence") and (
        column.step is ColumnStep.COPY or column.gives_ids or column.gives_counts
    ):
        raise ModelError(f"{where}: combiner: values that are passed on have none")


def _check_distinct(column: FeatureColumn, where: str) -> None:
    if not column.distinct:
        return
    allowed = ColumnStep.HASH, ColumnStep.VOCABULARY, ColumnStep.IDENTITY
    if column.combiner != "sum" or column.table is None or column.step not in allowed:
        raise ModelError(f"{where}: distinct: expected rows of a table by hash, vocabulary or identity, and their sum")
    if index_range(column).high > MOST_DISTINCT:
        raise ModelError(f"{where}: distinct: expected at most {MOST_DISTINCT} indices")


def check_parts(column: FeatureColumn, features: Mapping[str, Feature], where: str) -> None:
    own = features[column.feature]
    if column.parts and (column.step is not ColumnStep.VOCABULARY or column.oov or not own.is_text):
        raise ModelError(f"{where}: parts: only text with a vocabulary, and no oov buckets, has parts")
    for place, part in enumerate(column.parts):
        key = f"{where}: parts[{place}]"
        if (part.feature is None) == (part.text is None):
            raise ModelError(f"{key}: expected one of feature and text")
        kind = features[part.feature].kind if part.feature is not None and part.feature in features else None
        if part.feature is not None and kind != "string" and part.feature != own.name:
            raise ModelError(f"{key}: feature: expected a string, or tokens of the column's own, got {part.feature!r}")
        width = features[part.feature].width if part.feature is not None and kind == "string" else 1
        if width > 1:
            raise ModelError(f"{key}: feature: expected one text a row, {part.feature!r} has width {width}")
        if own.kind == "tokens" and part.feature not in (None, own.name):
            raise ModelError(f"{key}: feature: tokens are joined with the same text each, not with {part.feature!r}")
    if column.parts and column.feature not in [part.feature for part in column.parts]:
        raise ModelError(f"{where}: parts: none is of the feature {column.feature!r}")


def check_cross(column: FeatureColumn, features: Mapping[str, Feature], where: str) -> None:
    parts, key = column.cross_parts, "cross" if column.cross else "crossed"
    if column.cross and column.crossed:
        raise ModelError(f"{where}: expected one of cross and crossed")
    if column.crossed and (len(parts) < 2 or parts[0].feature != column.feature):
        raise ModelError(f"{where}: crossed: expected two parts at least, the first of the feature {column.feature!r}")
    for place, part in enumerate(parts):
        kind = features[part.feature].kind if part.feature in features else None
        name = f"{where}: {key}[{place}]" if column.crossed else f"{where}: cross"
        allowed = ("float",) if part.boundaries is not None else ("int", "string")
        if kind not in allowed:
            expected = "a float feature" if part.boundaries is not None else "int or string features"
            raise ModelError(f"{name}: expected {expected}, got {part.feature!r}")
        if part.boundaries is not None and (part.vocabulary is not None or part.oov):
            raise ModelError(f"{name}: expected one of boundaries and vocabulary")
        if part.boundaries is not None:
            _check_edges(part.boundaries, name)
        if part.vocabulary is not None:
            _check_keys(part.vocabulary, part.oov, features[part.feature], name)
        elif part.oov:
            raise ModelError(f"{name}: oov: only a vocabulary has such buckets")
        if part.missing is not None and (part.gives_numbers or kind != "int"):
            raise ModelError(f"{name}: missing: expected an int feature without a vocabulary")
        counts = (part.places, part.places * features[part.feature].width) if part.gives_numbers else ()
        if part.values and len(part.values) not in counts:
            expected = f"{part.places} of them" if part.gives_numbers else "boundaries or a vocabulary"
            raise ModelError(f"{name}: values: expected {expected}, got {len(part.values)}")
        if any(value is not False and not -(1 << 62) < value < 1 << 63 for value in part.values):
            raise ModelError(f"{name}: values: beyond 62 bits")
    if parts and prod(features[part.feature].width for part in parts) > MOST_COMBINATIONS:
        raise ModelError(f"{where}: {key}: a row has more than {MOST_COMBINATIONS} combinations of values")


def _check_edges(edges: tuple[float, ...], where: str) -> None:
    rounded = np.array(edges, np.float32)
    if not edges or np.isnan(rounded).any() or (rounded[1:] <= rounded[:-1]).any():
        raise ModelError(f"{where}: boundaries: expected float32 numbers that rise")


def _check_keys(keys: tuple[str | int, ...], oov: int, feature: Feature, where: str) -> None:
    wanted = int if feature.kind == "int" else str
    if not keys or not all(type(key) is wanted for key in keys):
        raise ModelError(f"{where}: vocabulary: expected a list of {'integers' if wanted is int else 'strings'}")
    check_unique([str(key) for key in keys], "vocabulary", Path(where))
    if len(keys) + oov >= 1 << 31:
        raise ModelError(f"{where}: oov: beyond 31 bits")


def _check_boundaries(column: FeatureColumn, feature: Feature, where: str) -> None:
    edges = column.boundaries or ()
    _check_edges(edges, where)
    if feature.width > 1 and feature.kind != "float":
        raise ModelError(f"{where}: boundaries: several values a row are those of a float feature, not {feature.kind}")
    if feature.width > 1 and column.default not in (-1, len(edges)):
        raise ModelError(f"{where}: default: NaN among several values is in the last bucket, got {column.default}")
    if not -1 <= column.default <= len(edges):
        raise ModelError(f"{where}: default: of NaN, one of {len(edges) + 1} buckets, got {column.default}")
