"""Code paths: columns that agree in theirs run through the same code of the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from veltair.compiler.features.column_ranges import index_range
from veltair.compiler.features.feature_description import CHARACTERS, ColumnStep, Feature, FeatureColumn
from veltair.compiler.features.symbolic_shapes import has_one_value

ROW_STEPS = (
    ColumnStep.HASH,
    ColumnStep.BOUNDARIES,
    ColumnStep.VOCABULARY,
    ColumnStep.IDENTITY,
    ColumnStep.PARTS,
    ColumnStep.CROSS,
    ColumnStep.KEYED_HASH,
    ColumnStep.KEYED_VOCABULARY,
)  # what gives the index of a row


class ValueKind(StrEnum):
    """What a column reads; dense features are floats."""

    INT = "int"
    FLOAT = "float"
    FLOATS = "floats"  # several of a row, each with an interval
    STRING = "string"
    TOKENS = "tokens"


class Combination(StrEnum):
    """What becomes of the values of one row of the batch."""

    ONE = ""  # there is one at most: looked up without a reduction (RECom 5.2), or passed on
    MANY = "many"  # their rows, or the numbers that they spell, are added up
    ROWS = "rows"  # their rows stay apart, in order
    IDS = "ids"  # their indices stay apart, in order; no table


@dataclass(frozen=True, slots=True)
class CodePath:
    """The code that a column needs.

    >>> str(CodePath(ValueKind.TOKENS, ColumnStep.HASH, Combination.MANY))
    'tokens.hash.many'
    """

    kind: ValueKind
    step: ColumnStep
    combination: Combination = Combination.ONE
    case: str | None = None  # of text: the letter case in which it is read
    strips: bool = False  # of text: whether white space around it is left out
    removes: bytes = b""  # of text: bytes that are left out
    at_white_space: bool = False  # of tokens: whether they are split at white space
    at_characters: bool = False  # of tokens: whether they are the characters of a text
    distinct: int = 0  # words of 64 bits that say which indices a row has; 0: each counts as often as it comes

    def __str__(self) -> str:
        """Columns are sorted by it, and the digest of a column table holds it: it stays as it is."""
        clean: list[str | None] = [self.case, "strip" if self.strips else None]
        clean += [f"without {self.removes.hex()}"] if self.removes else []
        clean += ["white space"] if self.at_white_space else []
        clean += ["characters"] if self.at_characters else []
        clean += [f"distinct {self.distinct}"] if self.distinct else []
        return ".".join(filter(None, (self.kind, self.step, self.combination, *clean)))

    @property
    def copies_rows(self) -> bool:
        """Whether each row of the batch takes one row of a table, and nothing is added up."""
        return self.combination is Combination.ONE and self.step in ROW_STEPS

    @property
    def label(self) -> str:
        """The path in words, for the layer's note."""
        combination = "" if self.combination is Combination.MANY else self.combination
        return " by ".join(filter(None, (self.kind, self.step, combination)))


def code_path(column: FeatureColumn, feature: Feature) -> CodePath:
    """The path of a column. Where a row has one value at most, its combiner does not matter."""
    kind = ValueKind.FLOAT if feature.kind == "dense" else ValueKind(feature.kind)
    if feature.kind == "float" and feature.width > 1 and column.boundaries is not None:
        kind = ValueKind.FLOATS
    step = ColumnStep.PARTS if column.parts else ColumnStep.CROSS if column.cross_parts else column.step
    if column.is_keyed:
        step = ColumnStep.KEYED_HASH if step is ColumnStep.HASH else ColumnStep.KEYED_VOCABULARY
    if column.gives_ids:
        combination = Combination.IDS
    elif column.combiner == "sequence":
        combination = Combination.ROWS
    else:
        passed_on = step is ColumnStep.COPY or column.gives_counts
        combination = Combination.ONE if passed_on or has_one_value(feature) else Combination.MANY
    return CodePath(
        kind,
        step,
        combination,
        column.case,
        column.strip,
        column.removed_bytes,
        at_white_space=kind is ValueKind.TOKENS and not feature.separator,
        at_characters=kind is ValueKind.TOKENS and feature.separator == CHARACTERS,
        distinct=-(-index_range(column).high // 64) if column.distinct else 0,
    )
