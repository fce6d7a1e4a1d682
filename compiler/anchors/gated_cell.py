"""What one step of a recurrence computes, as algebra: the body of an ONNX Scan read as a gated recurrent unit.

Exporters write the cell in many ways: inputs and state concatenated or not, gates as one product that is split or as
several, `u h + (1 - u) c` in any order. So nothing is matched node by node. The body is evaluated on symbols: every
tensor is a sum of terms, each an element-wise product of atoms (state, inputs, sigmoids and tanhs of other sums) times
a matrix product of such a product with constants. Two ways to write one cell give the same sums, and splitting the
cell's products into those with inputs and those with the state (AtRec III-B1) is reading the terms apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.node import attribute

Array: TypeAlias = NDArray[np.float64]
Product = tuple[str, ...]  # of atoms, sorted
# (outer, None): the product of `outer` times a row of constants, element-wise.
# (outer, inner): the product of `outer` times (the product of `inner` @ a matrix of constants).
Key = tuple[Product, Product | None]
ONE: Product = ()


@dataclass(frozen=True, slots=True)
class Sum:
    """A tensor (rows, width): the sum of its terms."""

    width: int
    terms: Mapping[Key, Array]


@dataclass(frozen=True, slots=True)
class Cell:
    """The unit that a body is; weights as `kernels.recurrent` wants them."""

    x: str  # name of the scan input with the step's inputs
    score: str | None  # of the one that weakens the update gate, of width 1
    reset: str  # "before" or "after" the product with the state
    weights: Mapping[str, NDArray[np.float32]]
    states: tuple[str, ...]  # the body's outputs that are the new state


@dataclass(slots=True)
class Body:
    """Evaluates a body. Raises LookupError for an operator or a form that is not in the algebra."""

    widths: Mapping[str, int]  # of state and scan inputs
    constants: Mapping[str, NDArray[Any]]
    values: dict[str, Sum] = field(default_factory=dict)
    functions: dict[str, tuple[str, Sum]] = field(default_factory=dict)  # atom -> "Sigmoid" or "Tanh", of what
    atoms: dict[str, str] = field(default_factory=dict)  # by content: equal functions are one atom

    def run(self, nodes: Sequence[onnx.NodeProto]) -> None:
        for name, width in self.widths.items():
            self.values[name] = Sum(width, {((name,), None): np.ones(width)})
        for node in nodes:
            if node.op_type not in OPERATORS:
                raise LookupError(f"{node.op_type} ({node.name!r})")
            results = OPERATORS[node.op_type](self, node)
            self.values.update(zip(node.output, results, strict=True))

    def value(self, name: str) -> Sum:
        if name in self.values:
            return self.values[name]
        if name not in self.constants:
            raise LookupError(f"a tensor from outside ({name!r})")
        array = np.atleast_1d(np.asarray(self.constants[name], np.float64))
        if array.size != array.shape[-1]:
            raise LookupError(f"a constant that varies along rows ({name!r})")
        return Sum(array.size, {(ONE, None): array.reshape(-1)})

    def matrix(self, name: str) -> Array:
        found = self.constants.get(name)
        if found is None or found.ndim != 2:
            raise LookupError(f"a product with something else than a constant matrix ({name!r})")
        return np.asarray(found, np.float64)

    def width_of(self, product: Product) -> int:
        return max((self.functions[a][1].width if a in self.functions else self.widths[a]) for a in product)

    def function(self, kind: str, argument: Sum) -> Sum:
        content = f"{kind} {sorted((repr(key), factor.tobytes()) for key, factor in argument.terms.items())}"
        name = self.atoms.setdefault(content, f"{kind}{len(self.atoms)}")
        self.functions[name] = (kind, argument)
        return Sum(argument.width, {((name,), None): np.ones(argument.width)})

    def linear(self, value: Sum, weight: Array) -> Sum:
        """value @ weight"""
        found: dict[Key, Array] = {}
        for (outer, inner), factor in value.terms.items():
            if inner is None and outer == ONE:
                _add(found, (ONE, None), np.broadcast_to(factor, value.width) @ weight)
            elif inner is None:
                spread = np.broadcast_to(factor, value.width)
                narrow = self.width_of(outer) == 1 < value.width
                _add(found, (ONE, outer), spread[None] @ weight if narrow else spread[:, None] * weight)
            elif outer == ONE:
                _add(found, (ONE, inner), factor @ weight)
            else:
                raise LookupError("a product of a gated product")
        return self.settled(Sum(weight.shape[1], found))

    def settled(self, value: Sum) -> Sum:
        """Products with diagonal matrices are products with rows, and what is zero is nothing."""
        found: dict[Key, Array] = {}
        for (outer, inner), factor in value.terms.items():
            width = value.width
            if inner is not None and factor.shape == (width, width) and not np.any(factor - np.diag(np.diag(factor))):
                _add(found, (tuple(sorted((*outer, *inner))), None), np.diag(factor))
            else:
                _add(found, (outer, inner), factor)
        return Sum(value.width, {key: factor for key, factor in found.items() if np.any(factor)})

    def columns(self, value: Sum, start: int, stop: int) -> Sum:
        """A slice of the columns; that of a function is the function of a slice."""
        count, found = stop - start, Sum(stop - start, {})
        for (outer, inner), factor in value.terms.items():
            if outer != ONE and inner is None and not all(atom in self.functions for atom in outer):
                if len(outer) > 1:
                    raise LookupError("a slice of a product")
                chosen = np.diag(np.broadcast_to(factor, value.width))[:, start:stop]
                part = Sum(count, {(ONE, outer): chosen})
            else:
                spread = np.broadcast_to(factor, (*factor.shape[:-1], value.width))
                part = Sum(count, {(ONE, inner): spread[..., start:stop]})
                for atom in outer:
                    if atom not in self.functions:
                        raise LookupError("a slice of a product")
                    kind, argument = self.functions[atom]
                    part = self.times(part, self.function(kind, self.columns(argument, start, stop)))
            found = self.plus(found, part)
        return found

    def plus(self, left: Sum, right: Sum, sign: float = 1.0) -> Sum:
        width = max(left.width, right.width)
        found: dict[Key, Array] = {}
        for value, factor in ((left, 1.0), (right, sign)):
            for key, array in value.terms.items():
                _add(found, key, factor * np.broadcast_to(array, (*array.shape[:-1], width)))
        return self.settled(Sum(width, found))

    def times(self, left: Sum, right: Sum) -> Sum:
        found: dict[Key, Array] = {}
        for (outer, inner), factor in left.terms.items():
            for (other_outer, other_inner), other in right.terms.items():
                if inner is not None and other_inner is not None:
                    raise LookupError("a product of two matrix products")
                _add(found, (tuple(sorted((*outer, *other_outer))), inner or other_inner), factor * other)
        return self.settled(Sum(max(left.width, right.width), found))


def _add(found: dict[Key, Array], key: Key, factor: Array) -> None:
    found[key] = found[key] + factor if key in found else np.asarray(factor, np.float64)


def _concat(body: Body, node: onnx.NodeProto) -> list[Sum]:
    _last_axis(node)
    parts = [body.value(name) for name in node.input]
    width, start = sum(part.width for part in parts), 0
    whole = Sum(width, {})
    for part in parts:
        place = np.zeros((part.width, width))
        place[:, start : start + part.width] = np.eye(part.width)
        whole, start = body.plus(whole, body.linear(part, place)), start + part.width
    return [whole]


def _split(body: Body, node: onnx.NodeProto) -> list[Sum]:
    _last_axis(node)
    value, count = body.value(node.input[0]), len(node.output)
    sizes = [-(-value.width // count)] * count
    if len(node.input) > 1 and node.input[1]:
        sizes = np.asarray(body.constants[node.input[1]]).tolist()
    ends = np.minimum(np.cumsum([0, *sizes]), value.width).tolist()
    return [body.columns(value, start, stop) for start, stop in itertools.pairwise(ends)]


def _slice(body: Body, node: onnx.NodeProto) -> list[Sum]:
    starts, stops, axes, *steps = (np.asarray(body.constants[name]).tolist() for name in node.input[1:])
    value = body.value(node.input[0])
    if axes not in ([1], [-1]) or steps not in ([], [[1]]):
        raise LookupError("a slice of rows")
    return [body.columns(value, *slice(starts[0], stops[0]).indices(value.width)[:2])]


def _gemm(body: Body, node: onnx.NodeProto) -> list[Sum]:
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


def _sum(body: Body, node: onnx.NodeProto) -> list[Sum]:
    total = body.value(node.input[0])
    for name in node.input[1:]:
        total = body.plus(total, body.value(name))
    return [total]


OPERATORS: Mapping[str, Callable[[Body, onnx.NodeProto], list[Sum]]] = {
    "Identity": lambda body, node: [body.value(node.input[0])],
    "Add": _sum,
    "Sum": _sum,
    "Sub": lambda body, node: [body.plus(body.value(node.input[0]), body.value(node.input[1]), -1.0)],
    "Neg": lambda body, node: [body.plus(Sum(1, {}), body.value(node.input[0]), -1.0)],
    "Mul": lambda body, node: [body.times(body.value(node.input[0]), body.value(node.input[1]))],
    "MatMul": lambda body, node: [body.linear(body.value(node.input[0]), body.matrix(node.input[1]))],
    "Gemm": _gemm,
    "Sigmoid": lambda body, node: [body.function("Sigmoid", body.value(node.input[0]))],
    "Tanh": lambda body, node: [body.function("Tanh", body.value(node.input[0]))],
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
}


def read_cell(graph: onnx.GraphProto, widths: Mapping[str, int], constants: Mapping[str, NDArray[Any]]) -> Cell:
    """The unit that a Scan's body is. `widths` are those of the state and of the scan inputs, in order.

    Raises LookupError saying what is in the way.
    """
    body = Body(widths, constants)
    body.run(graph.node)
    state, *given = widths
    new = body.value(graph.output[0].name)
    atoms = {atom for outer, _ in new.terms for atom in outer}

    def of(kind: str) -> list[str]:
        return sorted(atom for atom in atoms if atom in body.functions and body.functions[atom][0] == kind)

    for update in of("Sigmoid"):
        for candidate in of("Tanh"):
            for score in (None, *(name for name in given if widths[name] == 1)):
                for sign in (1.0, -1.0):
                    if _is_update(new, state, update, candidate, score, sign):
                        weights, reset, x = _weights(body, state, given, update, candidate, sign)
                        states = tuple(o.name for o in graph.output if _same(body.value(o.name), new))
                        return Cell(x, score, reset, weights, states)
    raise LookupError("its new state is not u h + (1 - u) c with a gate u and a candidate c")


def _same(left: Sum, right: Sum) -> bool:
    return left.terms.keys() == right.terms.keys() and all(
        np.allclose(left.terms[key], right.terms[key]) for key in left.terms
    )


def _is_update(new: Sum, state: str, update: str, candidate: str, score: str | None, sign: float) -> bool:
    """Whether the new state is u h + (1 - u) c with u = gate, (1 - score) gate, or, by sign, 1 - gate."""
    one = np.ones(new.width)
    gate: dict[Product, float] = {(update,): 1.0} if sign > 0 else {ONE: 1.0, (update,): -1.0}
    if score is not None:
        gate = gate | {tuple(sorted((*product, score))): -factor for product, factor in gate.items()}
    wanted: dict[Key, Array] = {((candidate,), None): one}
    for product, factor in gate.items():
        for atom, by in ((state, factor), (candidate, -factor)):
            _add(wanted, (tuple(sorted((*product, atom))), None), by * one)
    wanted = {key: factor for key, factor in wanted.items() if np.any(factor)}
    return _same(new, Sum(new.width, wanted))


def _weights(
    body: Body, state: str, given: Sequence[str], update: str, candidate: str, sign: float
) -> tuple[Mapping[str, NDArray[np.float32]], str, str]:
    """The gates' terms told apart: weights, where the reset stands, and which scan input is x."""
    argument = body.functions[candidate][1]
    gates = {atom for outer, inner in argument.terms for atom in (*outer, *(inner or ())) if atom in body.functions}
    sources = {update: body.functions[update][1], candidate: argument}
    if len(gates) > 1 or any(body.functions[gate][0] != "Sigmoid" for gate in gates):
        raise LookupError("its candidate depends on more than one gate")
    reset = next(iter(gates), None)
    if reset is None:
        raise LookupError("its candidate depends on no reset gate")
    sources[reset] = body.functions[reset][1]
    mixed: Product = tuple(sorted((reset, state)))
    names = {a for s in sources.values() for o, i in s.terms for a in (*o, *(i or ())) if a in given}
    if len(names) != 1:
        raise LookupError(f"its products read {len(names)} scan inputs; expected one")
    (x,) = names
    hidden, inputs = argument.width, body.widths[x]
    after = any(outer == (reset,) and inner in (None, (state,)) for outer, inner in argument.terms)
    found = {k: np.zeros((n, 3 * hidden)) for k, n in (("input", inputs), ("recurrent", hidden), ("bias", 1))}
    found["candidate_bias"] = np.zeros((1, hidden))
    for place, atom in enumerate((reset, update, candidate)):
        columns = slice(place * hidden, (place + 1) * hidden)
        by = sign if place == 1 else 1.0
        for (outer, inner), factor in sources[atom].terms.items():
            matrix = factor if inner is not None else np.diag(np.broadcast_to(factor, hidden))
            source = inner or outer if ONE in (outer, inner or ONE) else None  # of the product, if it is of one
            if source == ONE:
                found["bias"][:, columns] += by * factor
            elif source == (x,) and matrix.shape[0] == inputs:
                found["input"][:, columns] += by * matrix
            elif atom != candidate and source == (state,):
                found["recurrent"][:, columns] += by * matrix
            elif atom == candidate and source == (reset,) and inner is None:
                found["candidate_bias"] += factor
            elif atom == candidate and (
                (outer, inner) == ((reset,), (state,)) or (source == mixed and not (after and inner))
            ):
                found["recurrent"][:, columns] += matrix
            else:
                raise LookupError("its gates read something else than the state and the step's inputs")
    weights = {name: array.astype(np.float32) for name, array in found.items()}
    weights |= {name: weights[name][0] for name in ("bias", "candidate_bias")}
    return weights, "after" if after else "before", x
