"""The body of a Scan read as a gated recurrent unit.

Exporters write the cell in many ways: inputs and state concatenated or not, gates as one product that is split or as
several, `u h + (1 - u) c` in any order. So nothing is matched node by node: `cell_algebra` says what is computed, and
splitting the cell's products into those with inputs and those with the state (AtRec III-B1) is reading terms apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.parameters.sequence import ResetPosition
from veltair.compiler.patterns.sequence.cell_algebra import (
    ONE,
    Array,
    Monomial,
    ScanBody,
    SymbolicTensor,
    TermKey,
    add_term,
    equal_sums,
)


@dataclass(frozen=True, slots=True)
class GatedCell:
    """The gated recurrent unit that the body of a Scan computes, with its weights as `kernels/recurrent` reads them.

    ::

        cell = read_cell(graph, {"h": 4, "x": 5}, constants)
        cell.reset, cell.weights["recurrent"].shape
    """

    x: str  # name of the scan input with the step's inputs
    score: str | None  # name of the scan input, of width 1, that weakens the update gate
    reset: ResetPosition
    weights: Mapping[str, NDArray[np.float32]]
    states: tuple[str, ...]  # the body's outputs that are the new state


def read_cell(graph: onnx.GraphProto, widths: Mapping[str, int], constants: Mapping[str, NDArray[Any]]) -> GatedCell:
    """The gated recurrent unit that a Scan's body computes.

    widths: the columns of the state and of the scan inputs, by name, in the order of the body's inputs.
    Raises LookupError, which says what is not such a unit.
    """
    body = ScanBody(widths, constants)
    body.run(graph.node)
    state, *given = widths
    new = body.value(graph.output[0].name)
    atoms = {atom for outer, _ in new.terms for atom in outer}

    def functions_of(kind: str) -> list[str]:
        return sorted(atom for atom in atoms if atom in body.functions and body.functions[atom][0] == kind)

    for update in functions_of("Sigmoid"):
        for candidate in functions_of("Tanh"):
            for score in (None, *(name for name in given if widths[name] == 1)):
                for sign in (1.0, -1.0):
                    if _is_update(new, state, update, candidate, score, sign):
                        weights, reset, x = _weights(body, state, given, update, candidate, sign)
                        states = tuple(o.name for o in graph.output if equal_sums(body.value(o.name), new))
                        return GatedCell(x, score, reset, weights, states)
    raise LookupError("its new state is not u h + (1 - u) c with a gate u and a candidate c")


def _is_update(new: SymbolicTensor, state: str, update: str, candidate: str, score: str | None, sign: float) -> bool:
    """Whether the new state is u h + (1 - u) c, where u is gate or (1 - score) gate, or, by sign, 1 - gate."""
    one = np.ones(new.width)
    gate: dict[Monomial, float] = {(update,): 1.0} if sign > 0 else {ONE: 1.0, (update,): -1.0}
    if score is not None:
        gate = gate | {tuple(sorted((*product, score))): -factor for product, factor in gate.items()}
    wanted: dict[TermKey, Array] = {((candidate,), None): one}
    for product, factor in gate.items():
        for atom, by in ((state, factor), (candidate, -factor)):
            add_term(wanted, (tuple(sorted((*product, atom))), None), by * one)
    wanted = {key: factor for key, factor in wanted.items() if np.any(factor)}
    return equal_sums(new, SymbolicTensor(new.width, wanted))


def _weights(
    body: ScanBody, state: str, given: Sequence[str], update: str, candidate: str, sign: float
) -> tuple[Mapping[str, NDArray[np.float32]], ResetPosition, str]:
    """The terms of the gates taken apart: weights, where the reset applies, and which scan input is x."""
    argument = body.functions[candidate][1]
    gates = {atom for outer, inner in argument.terms for atom in (*outer, *(inner or ())) if atom in body.functions}
    sources = {update: body.functions[update][1], candidate: argument}
    if len(gates) > 1 or any(body.functions[gate][0] != "Sigmoid" for gate in gates):
        raise LookupError("its candidate depends on more than one gate")
    reset = next(iter(gates), None)
    if reset is None:
        raise LookupError("its candidate depends on no reset gate")
    sources[reset] = body.functions[reset][1]
    mixed: Monomial = tuple(sorted((reset, state)))
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
    return weights, ResetPosition.AFTER_PRODUCT if after else ResetPosition.BEFORE_PRODUCT, x
