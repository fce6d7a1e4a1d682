"""Symbolic shapes of a column's tensors: unified, bounded from above, and placed in one buffer (RECom 3.1.4, 4.1).

An extent is a polynomial over symbols: the batch, the tokens of a feature, what a filter leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


Shape = tuple[Extent, ...]


@dataclass(slots=True)
class Symbols:
    """Extents that are known only at run time: which of them are equal, and how large each may become.

    >>> symbols = Symbols()
    >>> tokens = symbols.new("tokens", upper=Extent.from_value("batch") * 50)
    >>> str(symbols.upper_bound(tokens))
    '50*batch'
    """

    _same: dict[str, Extent] = field(default_factory=dict)  # a symbol that was unified -> what it equals
    _upper: dict[str, Extent] = field(default_factory=dict)

    def new(self, name: str, upper: Extent | int) -> Extent:
        """An extent that depends on what tensors hold (fig. 7b), at most `upper`."""
        if name in self._upper:
            raise InvariantError(f"the symbol {name} stands twice")
        self._upper[name] = Extent.from_value(upper)
        return Extent.from_value(name)

    def unify(self, a: Extent, b: Extent) -> Extent:
        """An operator asks for equal extents (fig. 7c). Raises InvariantError for two numbers that differ."""
        a, b = self.resolve(a), self.resolve(b)
        if a == b:
            return a
        for one, other in ((a, b), (b, a)):
            symbol = _symbol(one)
            bounded = symbol is not None and symbol in self._upper
            if symbol is not None and bounded and not any(symbol in term for term in other.terms):
                self._same[symbol] = other
                return other
        raise InvariantError(f"extents {a} and {b} cannot be equal")

    def resolve(self, extent: Extent) -> Extent:
        """The extent in terms of symbols that are left."""
        while any(symbol in self._same for term in extent.terms for symbol in term):
            extent = extent.substitute(self._same)
        return extent

    def upper_bound(self, extent: Extent) -> Extent:
        """The most it may be, in terms of symbols without a bound (fig. 5): those of the inputs."""
        extent = self.resolve(extent)
        while any(symbol in self._upper for term in extent.terms for symbol in term):
            extent = self.resolve(extent.substitute(self._upper))
        return extent


def _symbol(extent: Extent) -> str | None:
    if len(extent.terms) == 1:
        (term, factor), *_ = extent.terms.items()
        if factor == 1 and len(term) == 1:
            return term[0]
    return None


def count_values(feature: Feature, symbols: Symbols, batch: Extent, text_bytes: Extent) -> tuple[Extent, Extent]:
    """How many values a feature has in a batch, and how many rows they belong to.

    A token is a byte at least, its separator; `truncate` bounds a row's.
    """
    if feature.kind != "tokens":
        return batch * feature.width, batch
    upper = batch * feature.truncate if feature.truncate is not None else text_bytes + batch
    return symbols.new(f"{feature.name}.values", upper), batch


def has_one_value(feature: Feature) -> bool:
    """Whether no row can have two values, so that there is nothing to reduce (RECom 5.2)."""
    symbols = Symbols()
    values, rows = count_values(feature, symbols, Extent.from_value("batch"), Extent.from_value("bytes"))
    return symbols.upper_bound(values) == rows


@dataclass(frozen=True, slots=True)
class MergedBuffer:
    """One buffer for many tensors, each as large as it may become: allotted once, when the batch is known.

    >>> batch = Extent.from_value("batch")
    >>> MergedBuffer.place([("ids", [batch], 8), ("sums", [batch * 4], 4)], Symbols()).at({"batch": 3})
    ({'ids': 0, 'sums': 64}, 128)
    """

    sizes: Mapping[str, Extent]  # bytes

    @classmethod
    def place(cls, tensors: Iterable[tuple[str, Sequence[Extent], int]], symbols: Symbols) -> MergedBuffer:
        """tensors: name, shape, bytes of an element."""
        sizes = {}
        for name, shape, itemsize in tensors:
            size = Extent.from_value(itemsize)
            for extent in shape:
                size = size * symbols.upper_bound(extent)
            sizes[name] = size
        return cls(sizes)

    def at(self, known: Mapping[str, int], alignment: int = 64) -> tuple[dict[str, int], int]:
        """Each tensor's offset, and the bytes of all."""
        offsets, end = {}, 0
        for name, size in self.sizes.items():
            offsets[name] = end
            end += -(-size.at(known) // alignment) * alignment
        return offsets, end
