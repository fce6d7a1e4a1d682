"""Ranges of integers with a step, and index expressions that are evaluated to them.

An expression over loop variables is read once into a `Linear` form; where variables have ranges, so has the result:
exact for what is linear, a hull that holds all values for the rest. Divisions by constants keep a range apart that lies
within one multiple, so that a task number splits into its parts as the kernel splits it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, TypeAlias


class Span(NamedTuple):
    """first, first + step, … last; a single value has step 0."""

    first: int
    last: int
    step: int = 1

    @property
    def length(self) -> int:
        return (self.last - self.first) // self.step + 1 if self.step else 1

    def plus(self, other: Span) -> Span:
        return Span(self.first + other.first, self.last + other.last, gcd(self.step, other.step))

    def times(self, factor: int) -> Span:
        ends = sorted((self.first * factor, self.last * factor))
        return Span(ends[0], ends[1], abs(self.step * factor))

    def hull(self, other: Span) -> Span:
        """The least span that holds both."""
        step = gcd(gcd(self.step, other.step), abs(self.first - other.first))
        return Span(min(self.first, other.first), max(self.last, other.last), step)

    def within(self, size: int) -> Span | None:
        """What of it lies in 0 … size - 1."""
        if not self.step:
            return self if 0 <= self.first < size else None
        first = self.first + max(0, -(self.first // self.step)) * self.step
        last = min(self.last, first + (size - 1 - first) // self.step * self.step)
        return Span(first, last, self.step if last > first else 0) if first <= last else None

    def floordiv(self, by: int) -> Span:
        first, last = self.first // by, self.last // by
        even = self.step % by == 0
        return Span(first, last, 0 if first == last else self.step // by if even else 1)

    def modulo(self, by: int) -> Span:
        if self.first // by == self.last // by:
            return Span(self.first % by, self.last % by, self.step)
        step = gcd(self.step, by)
        low = self.first % step
        return Span(low, by - step + low, step if step < by else 0)


def single(value: int) -> Span:
    return Span(value, value, 0)


def whole(size: int) -> Span:
    """0 … size - 1"""
    return Span(0, size - 1, 1 if size > 1 else 0)


@dataclass(frozen=True, slots=True)
class Opaque:
    """What is not linear: "div" and "mod" by a constant, "min", "max", "any" of both, "product", "unknown"."""

    kind: str
    left: Linear
    right: Linear


Atom: TypeAlias = int | Opaque  # the number of a variable, or an expression


@dataclass(frozen=True, slots=True)
class Linear:
    """The sum of factor x atom over `terms`, and a constant."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def plus(self, other: Linear) -> Linear:
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        return Linear(tuple((a, f) for a, f in factors.items() if f), self.constant + other.constant)

    def times(self, factor: int) -> Linear:
        return Linear(tuple((a, f * factor) for a, f in self.terms if factor), self.constant * factor)

    @property
    def known(self) -> bool:
        """Whether no part of it is read from memory."""
        return all(
            isinstance(atom, int) or (atom.kind != "unknown" and atom.left.known and atom.right.known)
            for atom, _ in self.terms
        )

    def span(self, ranges: Mapping[int, Span]) -> Span:
        """All values it can take while each variable stays in its range."""
        found = single(self.constant)
        for atom, factor in self.terms:
            found = found.plus((ranges[atom] if isinstance(atom, int) else _opaque(atom, ranges)).times(factor))
        return found


def variable(number: int) -> Linear:
    return Linear(((number, 1),))


UNKNOWN = Linear(((Opaque("unknown", Linear(), Linear()), 1),))


def combine(kind: str, left: Linear, right: Linear) -> Linear:
    """An `Opaque` of the two as a linear form; computed at once where both are constants."""
    opaque = Opaque(kind, left, right)
    if left.terms or right.terms:
        return Linear(((opaque, 1),))
    return Linear((), _opaque(opaque, {}).first)


def _opaque(atom: Opaque, ranges: Mapping[int, Span]) -> Span:
    left, right = atom.left.span(ranges), atom.right.span(ranges)
    if atom.kind in ("div", "mod") and not right.step and right.first > 0:
        return left.floordiv(right.first) if atom.kind == "div" else left.modulo(right.first)
    if atom.kind == "min":
        return _least(left, right)
    if atom.kind == "max":
        return _least(left.times(-1), right.times(-1)).times(-1)
    if atom.kind == "any":
        return left.hull(right)
    if atom.kind == "product" or (atom.kind == "div" and right.first > 0):
        ends = [a * b if atom.kind == "product" else a // b for a in left[:2] for b in right[:2]]
        return Span(min(ends), max(ends), 1 if min(ends) < max(ends) else 0)
    raise ValueError(f"no range for {atom.kind} of {left} and {right}")


def _least(left: Span, right: Span) -> Span:
    for side, other in ((left, right), (right, left)):
        if side.last <= other.first:
            return side
    first, last = min(left.first, right.first), min(left.last, right.last)
    return Span(first, last, left.hull(right).step if last > first else 0)
