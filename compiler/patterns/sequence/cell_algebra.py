"""What the body of an ONNX Scan computes, as algebra: evaluated on symbols instead of numbers.

Every tensor is a sum of terms, each an element-wise product of atoms (state, inputs, sigmoids and tanhs of other sums)
times a matrix product of such a product with constants. Two ways to write one computation give the same sums.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.node_attributes import attribute

Array: TypeAlias = NDArray[np.float64]
Monomial = tuple[str, ...]  # of atoms, sorted
# (outer, None): the product of `outer` times a row of constants, element-wise.
# (outer, inner): the product of `outer` times (the product of `inner` @ a matrix of constants).
TermKey = tuple[Monomial, Monomial | None]
ONE: Monomial = ()


@dataclass(frozen=True, slots=True)
class SymbolicTensor:
    """A tensor (rows, width) as the sum of its terms: a factor for each product of atoms.

    >>> SymbolicTensor(2, {(("h",), None): np.ones(2)}).width  # the state h itself
    2
    """

    width: int
    terms: Mapping[TermKey, Array]


@dataclass(slots=True)
class ScanBody:
    """Evaluates the body of a Scan on symbols. Raises LookupError for what the algebra does not have.

    >>> body = ScanBody({"h": 4, "x": 3}, constants={})
    >>> body.run([])
    >>> list(body.value("x").terms)
    [(('x',), None)]
    """

    widths: Mapping[str, int]  # of state and scan inputs
    constants: Mapping[str, NDArray[Any]]
    values: dict[str, SymbolicTensor] = field(default_factory=dict)
    # atom -> "Sigmoid" or "Tanh", and its argument
    functions: dict[str, tuple[str, SymbolicTensor]] = field(default_factory=dict)
    atoms: dict[str, str] = field(default_factory=dict)  # by content: equal functions are one atom

    def run(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Evaluate nodes, which come in topological order."""
        for name, width in self.widths.items():
            self.values[name] = SymbolicTensor(width, {((name,), None): np.ones(width)})
        for node in nodes:
            if node.op_type not in OPERATORS:
                raise LookupError(f"{node.op_type} ({node.name!r})")
            results = OPERATORS[node.op_type](self, node)
            self.values.update(zip(node.output, results, strict=True))

    def value(self, name: str) -> SymbolicTensor:
        """The symbolic value of a tensor of the body, or of a constant that is the same for every row."""
        if name in self.values:
            return self.values[name]
        if name not in self.constants:
            raise LookupError(f"a tensor from outside ({name!r})")
        array = np.atleast_1d(np.asarray(self.constants[name], np.float64))
        if array.size != array.shape[-1]:
            raise LookupError(f"a constant that varies along rows ({name!r})")
        return SymbolicTensor(array.size, {(ONE, None): array.reshape(-1)})

    def matrix(self, name: str) -> Array:
        """A constant matrix."""
        found = self.constants.get(name)
        if found is None or found.ndim != 2:
            raise LookupError(f"a product with something else than a constant matrix ({name!r})")
        return np.asarray(found, np.float64)

    def width_of(self, product: Monomial) -> int:
        """The columns of a product, which are those of its widest atom."""
        return max((self.functions[a][1].width if a in self.functions else self.widths[a]) for a in product)

    def function(self, kind: str, argument: SymbolicTensor) -> SymbolicTensor:
        """Sigmoid or Tanh of a tensor, which is an atom."""
        content = f"{kind} {sorted((repr(key), factor.tobytes()) for key, factor in argument.terms.items())}"
        name = self.atoms.setdefault(content, f"{kind}{len(self.atoms)}")
        self.functions[name] = (kind, argument)
        return SymbolicTensor(argument.width, {((name,), None): np.ones(argument.width)})

    def linear(self, value: SymbolicTensor, weight: Array) -> SymbolicTensor:
        """value @ weight"""
        found: dict[TermKey, Array] = {}
        for (outer, inner), factor in value.terms.items():
            if inner is None and outer == ONE:
                add_term(found, (ONE, None), np.broadcast_to(factor, value.width) @ weight)
            elif inner is None:
                spread = np.broadcast_to(factor, value.width)
                narrow = self.width_of(outer) == 1 < value.width
                add_term(found, (ONE, outer), spread[None] @ weight if narrow else spread[:, None] * weight)
            elif outer == ONE:
                add_term(found, (ONE, inner), factor @ weight)
            else:
                raise LookupError("a product of a gated product")
        return self.normalised(SymbolicTensor(weight.shape[1], found))

    def normalised(self, value: SymbolicTensor) -> SymbolicTensor:
        """The normal form: products with diagonal matrices become products with rows, and zero terms are dropped."""
        found: dict[TermKey, Array] = {}
        for (outer, inner), factor in value.terms.items():
            width = value.width
            if inner is not None and factor.shape == (width, width) and not np.any(factor - np.diag(np.diag(factor))):
                add_term(found, (tuple(sorted((*outer, *inner))), None), np.diag(factor))
            else:
                add_term(found, (outer, inner), factor)
        return SymbolicTensor(value.width, {key: factor for key, factor in found.items() if np.any(factor)})

    def columns(self, value: SymbolicTensor, start: int, stop: int) -> SymbolicTensor:
        """A slice of the columns. The slice of a function is the function of the slice."""
        count, found = stop - start, SymbolicTensor(stop - start, {})
        for (outer, inner), factor in value.terms.items():
            if outer != ONE and inner is None and not all(atom in self.functions for atom in outer):
                if len(outer) > 1:
                    raise LookupError("a slice of a product")
                chosen = np.diag(np.broadcast_to(factor, value.width))[:, start:stop]
                part = SymbolicTensor(count, {(ONE, outer): chosen})
            else:
                spread = np.broadcast_to(factor, (*factor.shape[:-1], value.width))
                part = SymbolicTensor(count, {(ONE, inner): spread[..., start:stop]})
                for atom in outer:
                    if atom not in self.functions:
                        raise LookupError("a slice of a product")
                    kind, argument = self.functions[atom]
                    part = self.times(part, self.function(kind, self.columns(argument, start, stop)))
            found = self.plus(found, part)
        return found

    def plus(self, left: SymbolicTensor, right: SymbolicTensor, sign: float = 1.0) -> SymbolicTensor:
        """left + sign * right, one column spread over many."""
        width = max(left.width, right.width)
        found: dict[TermKey, Array] = {}
        for value, factor in ((left, 1.0), (right, sign)):
            for key, array in value.terms.items():
                add_term(found, key, factor * np.broadcast_to(array, (*array.shape[:-1], width)))
        return self.normalised(SymbolicTensor(width, found))

    def times(self, left: SymbolicTensor, right: SymbolicTensor) -> SymbolicTensor:
        """The element-wise product."""
        found: dict[TermKey, Array] = {}
        for (outer, inner), factor in left.terms.items():
            for (other_outer, other_inner), other in right.terms.items():
                if inner is not None and other_inner is not None:
                    raise LookupError("a product of two matrix products")
                add_term(found, (tuple(sorted((*outer, *other_outer))), inner or other_inner), factor * other)
        return self.normalised(SymbolicTensor(max(left.width, right.width), found))


def add_term(found: dict[TermKey, Array], key: TermKey, factor: Array) -> None:
    """Add a term."""
    found[key] = found[key] + factor if key in found else np.asarray(factor, np.float64)


def _concat(body: ScanBody, node: onnx.NodeProto) -> list[SymbolicTensor]:
    _last_axis(node)
    parts = [body.value(name) for name in node.input]
    width, start = sum(part.width for part in parts), 0
    whole = SymbolicTensor(width, {})
    for part in parts:
        place = np.zeros((part.width, width))
        place[:, start : start + part.width] = np.eye(part.width)
        whole, start = body.plus(whole, body.linear(part, place)), start + part.width
    return [whole]


def _split(body: ScanBody, node: onnx.NodeProto) -> list[SymbolicTensor]:
    _last_axis(node)
    value, count = body.value(node.input[0]), len(node.output)
    sizes = [-(-value.width // count)] * count
    if len(node.input) > 1 and node.input[1]:
        sizes = np.asarray(body.constants[node.input[1]]).tolist()
    ends = np.minimum(np.cumsum([0, *sizes]), value.width).tolist()
    return [body.columns(value, start, stop) for start, stop in itertools.pairwise(ends)]


def _slice(body: ScanBody, node: onnx.NodeProto) -> list[SymbolicTensor]:
    starts, stops, axes, *steps = (np.asarray(body.constants[name]).tolist() for name in node.input[1:])
    value = body.value(node.input[0])
    if axes not in ([1], [-1]) or steps not in ([], [[1]]):
        raise LookupError("a slice of rows")
    return [body.columns(value, *slice(starts[0], stops[0]).indices(value.width)[:2])]


def _gemm(body: ScanBody, node: onnx.NodeProto) -> list[SymbolicTensor]:
    weight = body.matrix(node.input[1]) * attribute(node, "alpha", 1.0)
    if attribute(node, "transA", 0):
        raise LookupError("a transposed product")
    product = body.linear(body.value(node.input[0]), weight.T if attribute(node, "transB", 0) else weight)
    if len(node.input) < 3 or not node.input[2]:
        return [product]
    return [body.plus(product, body.value(node.input[2]), attribute(node, "beta", 1.0))]


def _last_axis(node: onnx.NodeProto) -> None:
    if attribute(node, "axis", 0) not in (1, -1):
        raise LookupError(f"{node.op_type} of rows")


def _sum(body: ScanBody, node: onnx.NodeProto) -> list[SymbolicTensor]:
    total = body.value(node.input[0])
    for name in node.input[1:]:
        total = body.plus(total, body.value(name))
    return [total]


OPERATORS: Mapping[str, Callable[[ScanBody, onnx.NodeProto], list[SymbolicTensor]]] = {
    "Identity": lambda body, node: [body.value(node.input[0])],
    "Add": _sum,
    "Sum": _sum,
    "Sub": lambda body, node: [body.plus(body.value(node.input[0]), body.value(node.input[1]), -1.0)],
    "Neg": lambda body, node: [body.plus(SymbolicTensor(1, {}), body.value(node.input[0]), -1.0)],
    "Mul": lambda body, node: [body.times(body.value(node.input[0]), body.value(node.input[1]))],
    "MatMul": lambda body, node: [body.linear(body.value(node.input[0]), body.matrix(node.input[1]))],
    "Gemm": _gemm,
    "Sigmoid": lambda body, node: [body.function("Sigmoid", body.value(node.input[0]))],
    "Tanh": lambda body, node: [body.function("Tanh", body.value(node.input[0]))],
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
}


def equal_sums(left: SymbolicTensor, right: SymbolicTensor) -> bool:
    """Whether two sums are equal except for rounding."""
    return left.terms.keys() == right.terms.keys() and all(
        np.allclose(left.terms[key], right.terms[key]) for key in left.terms
    )
