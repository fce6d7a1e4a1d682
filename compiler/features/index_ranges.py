"""Range propagation: which values an index can have after each step, and which safety steps that makes needless.

RECom 5.1 and appendix D: an operator maps indices into a range, keeps it, replaces what is outside of an interval, or
removes it. A replacement or removal goes only where the range before it lies within its interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INFINITE = 1 << 200


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers in [low, high); by default any at all."""

    low: int = -INFINITE
    high: int = INFINITE

    def within(self, other: Range) -> bool:
        return self.empty or (other.low <= self.low and self.high <= other.high)

    @property
    def empty(self) -> bool:
        return self.low >= self.high

    def and_(self, other: Range) -> Range:
        return Range(max(self.low, other.low), min(self.high, other.high))

    def or_(self, other: Range) -> Range:
        """The least range that holds both."""
        if self.empty or other.empty:
            return other if self.empty else self
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Map:
    """Every index becomes one of `into`, whatever it was: a hash, buckets, a vocabulary."""

    into: Range

    def after(self, before: Range) -> Range:
        return self.into


@dataclass(frozen=True, slots=True)
class Keep:
    """Reshapes and the like: the values stay."""

    def after(self, before: Range) -> Range:
        return before


@dataclass(frozen=True, slots=True)
class Replace:
    """An index outside of `inside` becomes `value`."""

    inside: Range
    value: int

    def after(self, before: Range) -> Range:
        if before.within(self.inside):
            return before
        return before.and_(self.inside).or_(Range(self.value, self.value + 1))


@dataclass(frozen=True, slots=True)
class Remove:
    """An index outside of `inside` goes."""

    inside: Range

    def after(self, before: Range) -> Range:
        return before.and_(self.inside)


Step = Map | Keep | Replace | Remove


def propagate(steps: Sequence[Step], before: Range | None = None) -> list[Range]:
    """The range before the first step and after each."""
    ranges = [before or Range()]
    for step in steps:
        ranges.append(step.after(ranges[-1]))
    return ranges


def simplified(steps: Sequence[Step], before: Range | None = None) -> tuple[Step, ...]:
    """The same indices from fewer steps: proved replacements and removals are dropped, successive ones merged."""
    kept: list[Step] = []
    for step, known in zip(steps, propagate(steps, before), strict=False):
        last = kept[-1] if kept else None
        if isinstance(step, Keep) or (isinstance(step, Replace | Remove) and known.within(step.inside)):
            continue
        if isinstance(step, Remove) and isinstance(last, Remove):
            kept[-1] = Remove(last.inside.and_(step.inside))
        elif isinstance(step, Replace) and isinstance(last, Replace) and step.value == last.value:
            kept[-1] = Replace(last.inside.and_(step.inside), step.value)
        else:
            kept.append(step)
    return tuple(kept)


def proved(steps: Sequence[Step], table_rows: int, before: Range | None = None) -> bool:
    """Whether every index that is left reads a row of the table, so that the lookup needs no check."""
    return propagate(steps, before)[-1].within(Range(0, table_rows))
