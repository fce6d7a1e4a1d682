"""Affine index expressions over loop variables, and the strided ranges of integers that they evaluate to.

An index expression is read once into an `AffineExpr`. Where its variables have ranges, its value has one: exact for the
affine part, a hull that holds all values for the rest. A division by a constant keeps a range exact that lies within
one multiple, so that a task number splits into its parts as the kernel splits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, TypeAlias


class StridedRange(NamedTuple):
    """The integers first, first + step, … last; a single value has step 0.

    >>> StridedRange(0, 6, 2).plus(StridedRange(1, 1, 0)).times(3)
    StridedRange(first=3, last=21, step=6)
    """

    first: int
    last: int
    step: int = 1

    @property
    def length(self) -> int:
        return (self.last - self.first) // self.step + 1 if self.step else 1

    def plus(self, other: StridedRange) -> StridedRange:
        return StridedRange(self.first + other.first, self.last + other.last, gcd(self.step, other.step))

    def times(self, factor: int) -> StridedRange:
        ends = sorted((self.first * factor, self.last * factor))
        return StridedRange(ends[0], ends[1], abs(self.step * factor))

    def hull(self, other: StridedRange) -> StridedRange:
        """The least range that holds both."""
        step = gcd(gcd(self.step, other.step), abs(self.first - other.first))
        return StridedRange(min(self.first, other.first), max(self.last, other.last), step)

    def clipped(self, size: int) -> StridedRange | None:
        """The part that lies in 0 … size - 1, if any."""
        if not self.step:
            return self if 0 <= self.first < size else None
        first = self.first + max(0, -(self.first // self.step)) * self.step
        last = min(self.last, first + (size - 1 - first) // self.step * self.step)
        return StridedRange(first, last, self.step if last > first else 0) if first <= last else None

    def floordiv(self, by: int) -> StridedRange:
        first, last = self.first // by, self.last // by
        even = self.step % by == 0
        return StridedRange(first, last, 0 if first == last else self.step // by if even else 1)

    def modulo(self, by: int) -> StridedRange:
        if self.first // by == self.last // by:
            return StridedRange(self.first % by, self.last % by, self.step)
        step = gcd(self.step, by)
        low = self.first % step
        return StridedRange(low, by - step + low, step if step < by else 0)


def single_value(value: int) -> StridedRange:
    return StridedRange(value, value, 0)


def full_range(size: int) -> StridedRange:
    """The range 0 … size - 1."""
    return StridedRange(0, size - 1, 1 if size > 1 else 0)


@dataclass(frozen=True, slots=True)
class NonAffineTerm:
    """A term that is not affine.

    kind: "div" or "mod" by a constant, "min", "max", "any" (either of the two), "product" or "unknown".

    >>> half = NonAffineTerm("div", loop_variable(0), AffineExpr((), 2))
    >>> AffineExpr(((half, 1),)).span({0: full_range(8)})
    StridedRange(first=0, last=3, step=1)
    """

    kind: str
    left: AffineExpr
    right: AffineExpr


Atom: TypeAlias = int | NonAffineTerm  # the number of a variable, or an expression


@dataclass(frozen=True, slots=True)
class AffineExpr:
    """The sum of factor x atom over `terms`, and a constant.

    >>> loop_variable(7).times(4).plus(AffineExpr((), 1)).span({7: full_range(3)})
    StridedRange(first=1, last=9, step=4)
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def plus(self, other: AffineExpr) -> AffineExpr:
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return AffineExpr(tuple((a, f) for a, f in factors.items() if f), self.constant + other.constant)

    def times(self, factor: int) -> AffineExpr:
        return AffineExpr(tuple((a, f * factor) for a, f in self.terms if factor), self.constant * factor)

    @property
    def known(self) -> bool:
        """Whether no part of the value is read from memory."""
        return all(
            isinstance(atom, int) or (atom.kind != "unknown" and atom.left.known and atom.right.known)
            for atom, _ in self.terms
        )

    def span(self, ranges: Mapping[int, StridedRange]) -> StridedRange:
        """All values it can take while each variable stays in its range."""
        found = single_value(self.constant)
        for atom, factor in self.terms:
            found = found.plus((ranges[atom] if isinstance(atom, int) else _term_range(atom, ranges)).times(factor))
        return found


def loop_variable(number: int) -> AffineExpr:
    return AffineExpr(((number, 1),))


UNKNOWN = AffineExpr(((NonAffineTerm("unknown", AffineExpr(), AffineExpr()), 1),))


def combine(kind: str, left: AffineExpr, right: AffineExpr) -> AffineExpr:
    """A `NonAffineTerm` of the two as an expression; computed at once where both are constants."""
    opaque = NonAffineTerm(kind, left, right)
    if left.terms or right.terms:
        return AffineExpr(((opaque, 1),))
    return AffineExpr((), _term_range(opaque, {}).first)


def _term_range(atom: NonAffineTerm, ranges: Mapping[int, StridedRange]) -> StridedRange:
    left, right = atom.left.span(ranges), atom.right.span(ranges)
    if atom.kind in ("div", "mod"):
        if right.first < 1:  # such as a share of no rows: then this code does not run
            right = full_range(max(right.last, 1)).plus(single_value(1))
        if not right.step:
            return left.floordiv(right.first) if atom.kind == "div" else left.modulo(right.first)
        if atom.kind == "mod":
            return full_range(right.last)
    if atom.kind == "min":
        return _least(left, right)
    if atom.kind == "max":
        return _least(left.times(-1), right.times(-1)).times(-1)
    if atom.kind == "any":
        return left.hull(right)
    if atom.kind in ("product", "div"):
        ends = [a * b if atom.kind == "product" else a // b for a in left[:2] for b in right[:2]]
        return StridedRange(min(ends), max(ends), 1 if min(ends) < max(ends) else 0)
    raise ValueError(f"no range for {atom.kind} of {left} and {right}")


def _least(left: StridedRange, right: StridedRange) -> StridedRange:
    for side, other in ((left, right), (right, left)):
        if side.last <= other.first:
            return side
    first, last = min(left.first, right.first), min(left.last, right.last)
    return StridedRange(first, last, left.hull(right).step if last > first else 0)
