"""Range propagation: the values that an index can have after each step, and the safety steps that are needless.

RECom 5.1 and appendix D: an operator maps indices into a range, keeps them, replaces those outside of an interval, or
removes these. A replacement or removal is needless where the range before it lies within its interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

INFINITE = 1 << 200


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Whole numbers in [low, high); by default all.

    >>> IndexRange(0, 5).hull(IndexRange(8, 9))
    IndexRange(low=0, high=9)
    """

    low: int = -INFINITE
    high: int = INFINITE

    def is_within(self, other: IndexRange) -> bool:
        return self.empty or (other.low <= self.low and self.high <= other.high)

    @property
    def empty(self) -> bool:
        return self.low >= self.high

    def intersection(self, other: IndexRange) -> IndexRange:
        return IndexRange(max(self.low, other.low), min(self.high, other.high))

    def hull(self, other: IndexRange) -> IndexRange:
        """The least range that holds both."""
        if self.empty or other.empty:
            return other if self.empty else self
        return IndexRange(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True, slots=True)
class MapInto:
    """Every index becomes one of `into`: a hash, boundaries, a vocabulary.

    >>> MapInto(IndexRange(0, 1000)).after(IndexRange())
    IndexRange(low=0, high=1000)
    """

    into: IndexRange

    def after(self, before: IndexRange) -> IndexRange:
        return self.into


@dataclass(frozen=True, slots=True)
class KeepAll:
    """The values stay, as in a reshape.

    >>> KeepAll().after(IndexRange(0, 5))
    IndexRange(low=0, high=5)
    """

    def after(self, before: IndexRange) -> IndexRange:
        return before


@dataclass(frozen=True, slots=True)
class ReplaceOutside:
    """An index outside of `inside` becomes `value`.

    >>> ReplaceOutside(inside=IndexRange(0, 10), value=0).after(IndexRange(-1, 8))
    IndexRange(low=0, high=8)
    """

    inside: IndexRange
    value: int

    def after(self, before: IndexRange) -> IndexRange:
        if before.is_within(self.inside):
            return before
        return before.intersection(self.inside).hull(IndexRange(self.value, self.value + 1))


@dataclass(frozen=True, slots=True)
class RemoveOutside:
    """An index outside of `inside` is removed.

    >>> RemoveOutside(inside=IndexRange(0, 10)).after(IndexRange(-1, 20))
    IndexRange(low=0, high=10)
    """

    inside: IndexRange

    def after(self, before: IndexRange) -> IndexRange:
        return before.intersection(self.inside)


IndexStep = MapInto | KeepAll | ReplaceOutside | RemoveOutside


def propagate_range(steps: Sequence[IndexStep]) -> list[IndexRange]:
    """The range before the first step, which is any, and after each."""
    ranges = [IndexRange()]
    for step in steps:
        ranges.append(step.after(ranges[-1]))
    return ranges


def simplify_steps(steps: Sequence[IndexStep]) -> tuple[IndexStep, ...]:
    """Fewer steps to the same indices: needless replacements and removals are dropped, successive ones merged."""
    kept: list[IndexStep] = []
    for step, known in zip(steps, propagate_range(steps), strict=False):
        last = kept[-1] if kept else None
        if isinstance(step, KeepAll) or (
            isinstance(step, ReplaceOutside | RemoveOutside) and known.is_within(step.inside)
        ):
            continue
        if isinstance(step, RemoveOutside) and isinstance(last, RemoveOutside):
            kept[-1] = RemoveOutside(last.inside.intersection(step.inside))
        elif isinstance(step, ReplaceOutside) and isinstance(last, ReplaceOutside) and step.value == last.value:
            kept[-1] = ReplaceOutside(last.inside.intersection(step.inside), step.value)
        else:
            kept.append(step)
    return tuple(kept)


def proves_in_bounds(steps: Sequence[IndexStep], table_rows: int) -> bool:
    """Whether every index that is left is a row of the table, so that the lookup needs no check."""
    return propagate_range(steps)[-1].is_within(IndexRange(0, table_rows))
