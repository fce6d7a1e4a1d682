"""Symbolic shapes of raw features: bounded from above, and placed in one buffer (RECom 3.1.4, 4.1).

An extent is a polynomial over symbols: the batch, the tokens or the bytes of a feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from veltair.compiler.features.feature_description import Feature
from veltair.errors import InvariantError

Monomial = tuple[str, ...]  # symbols of a product, sorted


@dataclass(frozen=True, slots=True)
class Extent:
    """A sum of products of symbols, each with a whole number before it.

    >>> str(Extent.from_value("batch") * 4 + 1)
    '4*batch + 1'
    """

    terms: Mapping[Monomial, int]

    @classmethod
    def from_value(cls, value: Extent | int | str) -> Extent:
        if isinstance(value, Extent):
            return value
        return cls({(): value} if isinstance(value, int) else {(value,): 1})

    def __add__(self, other: Extent | int) -> Extent:
        terms = dict(self.terms)
        for term, factor in Extent.from_value(other).terms.items():
            terms[term] = terms.get(term, 0) + factor
        return Extent({term: factor for term, factor in terms.items() if factor})

    def __mul__(self, other: Extent | int) -> Extent:
        total = Extent({})
        for left, a in self.terms.items():
            for right, b in Extent.from_value(other).terms.items():
                total = total + Extent({tuple(sorted((*left, *right))): a * b})
        return total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Extent | int) and dict(self.terms) == {
            term: factor for term, factor in Extent.from_value(other).terms.items() if factor
        }

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __str__(self) -> str:
        return " + ".join("*".join([str(f)] * (f != 1 or not t) + list(t)) for t, f in self.terms.items()) or "0"

    def substitute(self, values: Mapping[str, Extent]) -> Extent:
        total = Extent({})
        for term, factor in self.terms.items():
            product = Extent({(): factor})
            for symbol in term:
                product = product * values.get(symbol, Extent.from_value(symbol))
            total = total + product
        return total

    def at(self, sizes: Mapping[str, int]) -> int:
        """Its value once the symbols are known."""
        return sum(factor * prod(sizes[symbol] for symbol in term) for term, factor in self.terms.items())


@dataclass(slots=True)
class Symbols:
    """Extents that are known only at run time, and how large each may become.

    >>> symbols = Symbols()
    >>> tokens = symbols.new("tokens", upper=Extent.from_value("batch") * 50)
    >>> str(symbols.upper_bound(tokens))
    '50*batch'
    """

    _upper: dict[str, Extent] = field(default_factory=dict)

    def new(self, name: str, upper: Extent | int) -> Extent:
        """An extent that depends on what tensors hold (fig. 7b), at most `upper`."""
        if name in self._upper:
            raise InvariantError(f"the symbol {name} appears twice")
        self._upper[name] = Extent.from_value(upper)
        return Extent.from_value(name)

    def upper_bound(self, extent: Extent) -> Extent:
        """The most it may be, in terms of symbols without a bound (fig. 5): those of the inputs."""
        while any(symbol in self._upper for term in extent.terms for symbol in term):
            extent = extent.substitute(self._upper)
        return extent


def count_values(feature: Feature, symbols: Symbols, batch: Extent) -> Extent:
    """How many values a feature has in a batch. A token is one byte at least, its separator."""
    if feature.kind != "tokens":
        return batch * feature.width
    upper = batch * (feature.truncate if feature.truncate is not None else feature.max_bytes + 1)
    return symbols.new(f"{feature.name}.values", upper)


def count_bytes(feature: Feature, symbols: Symbols, batch: Extent) -> Extent:
    """How many bytes the texts of a feature have in a batch."""
    return symbols.new(f"{feature.name}.bytes", batch * feature.max_bytes)


def has_one_value(feature: Feature) -> bool:
    """Whether no row can have two values, so that there is nothing to reduce (RECom 5.2)."""
    symbols, batch = Symbols(), Extent.from_value("batch")
    return symbols.upper_bound(count_values(feature, symbols, batch)) == batch


@dataclass(frozen=True, slots=True)
class MergedBuffer:
    """One buffer for many tensors of a type, each as large as it may become: allotted once, when the batch is known.

    >>> batch = Extent.from_value("batch")
    >>> MergedBuffer.place({"ids": batch, "codes": batch * 4}, Symbols()).at({"batch": 3})
    ({'ids': 0, 'codes': 3}, 15)
    """

    sizes: Mapping[str, Extent]  # elements

    @classmethod
    def place(cls, tensors: Mapping[str, Extent], symbols: Symbols) -> MergedBuffer:
        """tensors: how many elements each has."""
        return cls({name: symbols.upper_bound(extent) for name, extent in tensors.items()})

    def at(self, known: Mapping[str, int]) -> tuple[dict[str, int], int]:
        """The elements before each tensor, and those of all."""
        offsets, end = {}, 0
        for name, size in self.sizes.items():
            offsets[name] = end
            end += size.at(known)
        return offsets, end
