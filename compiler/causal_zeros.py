"""Zeros that constants alone make: what a causal attention knows of positions behind its own.

Values seen on some inputs tell that a tensor is zero there, and not that it always is: a mask may depend on ids that
no sample has. `CausalZeros` follows the constants of a model, such as the triangle of a causal mask, through the
operators that exporters write around them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.onnx.node_attributes import attribute
from veltair.compiler.onnx.position_rules import Positions

MASKED = -9999.0  # added to a score it makes exp(score) zero; exporters write -10,000 and lower
DEEPEST = 16  # operators between a constant and where it is needed
MOST_AXES = 2  # of one tensor: query and key
ZERO_STAYS = frozenset({"Cast", "Identity", "Neg", "Abs", "Relu", "Sqrt"})
MOVES = frozenset({"Transpose", "Expand", "Reshape", "Unsqueeze", "Squeeze", "Flatten"})
LOWEST = np.float32(-np.inf)

Array = NDArray[Any]  # as many dimensions as the tensor; 1 where all elements along one are alike


class CausalZeros:
    """What is zero for every input, at every extent from the smallest on.

    ::

        CausalZeros(positions).hold("probabilities", 3)
    """

    def __init__(self, positions: Positions) -> None:
        self._positions, self._model = positions, positions.large
        self._makers = {name: node for node in self._model.nodes for name in node.output}
        self._found: dict[tuple[str, bool], Array] = {}  # by tensor, and whether zeros or levels; of one question

    def hold(self, name: str, axis: int) -> bool:
        """Whether the tensor is zero at each position along `axis` that lies behind those of its other axes.

        Positions below the smallest extent are never padding, and may be anything.
        """
        axes = self._positions.axes[name]
        if len(axes) > MOST_AXES:
            return False
        self._found.clear()
        zeros = self._zeros(name, 0)
        rank, whole = len(self._shape(name)), self._positions.extent
        where = {each: self._along(each, rank, np.arange(self._shape(name)[each]) % whole) for each in axes}
        behind = where[axis] >= self._positions.low
        for other in set(axes) - {axis}:
            behind = behind & (where[other] < where[axis])
        return bool((zeros | ~behind).all())

    def _along(self, axis: int, rank: int, numbers: Array) -> Array:
        return numbers.reshape([-1 if each == axis else 1 for each in range(rank)])

    def _zeros(self, name: str, depth: int) -> Array:
        """True where an element is zero for every input."""
        if name in self._model.initializers:
            return self._always(name, self._model.initializers[name] == 0)
        node, unknown = self._makers.get(name), np.zeros([1] * len(self._shape(name)), bool)
        if node is None or depth > DEEPEST:
            return unknown

        def of(place: int) -> Array:
            return self._once(self._zeros, node.input[place], depth + 1)

        match node.op_type:
            case "Softmax":
                return self._levels(node.input[0], depth + 1) <= MASKED
            case "Mul" | "And":
                return of(0) | of(1)
            case "Add" | "Sub" | "Or":
                return of(0) & of(1)
            case "Div":
                return of(0)
            case "Where":
                always, never = self._condition(node.input[0])
                return (always & of(1)) | (never & of(2)) | (of(1) & of(2))
            case op if op in ZERO_STAYS:
                return of(0)
            case op if op in MOVES:
                return self._moved(node, of(0))
        return unknown

    def _levels(self, name: str, depth: int) -> Array:
        """What constants add to each element, as an upper bound; 0 for what no constant says anything of."""
        if name in self._model.initializers:
            value = self._model.initializers[name].astype(np.float32)
            return np.asarray(value.max(self._others(name), keepdims=True))
        node, unknown = self._makers.get(name), np.zeros([1] * len(self._shape(name)), np.float32)
        if node is None or depth > DEEPEST:
            return unknown

        def of(place: int) -> Array:
            return self._once(self._levels, node.input[place], depth + 1)

        match node.op_type:
            case "Add":
                with np.errstate(over="ignore", invalid="ignore"):
                    return np.asarray(np.nan_to_num(of(0) + of(1), neginf=-np.inf))
            case "Where":
                always, never = self._condition(node.input[0])
                return np.asarray(np.maximum(np.where(never, LOWEST, of(1)), np.where(always, LOWEST, of(2))))
            case "Max" if len(node.input) == 2:
                first, second = of(0), of(1)
                return np.where((first <= MASKED) & (second <= MASKED), np.maximum(first, second), np.float32(0))
            case "Cast" | "Identity":
                return of(0)
            case op if op in MOVES:
                return self._moved(node, of(0))
        return unknown

    def _once(self, follow: Callable[[str, int], Array], name: str, depth: int) -> Array:
        """What `follow` finds of a tensor. Several nodes may read it."""
        key = name, follow == self._zeros
        if key not in self._found:
            self._found[key] = follow(name, depth)
        return self._found[key]

    def _condition(self, name: str) -> tuple[Array, Array]:
        """Where a condition always holds, and where it never does."""
        value = self._model.initializers.get(name)
        if value is None:
            return np.zeros((), bool), np.zeros((), bool)
        return self._always(name, value), self._always(name, ~value)

    def _always(self, name: str, value: Array) -> Array:
        """Where something holds of a constant along all axes but the dimension's."""
        return np.asarray(np.all(value, axis=self._others(name), keepdims=True))

    def _others(self, name: str) -> tuple[int, ...]:
        """The axes of a tensor that are not the dimension's."""
        return tuple(axis for axis in range(len(self._shape(name))) if axis not in self._positions.axes[name])

    def _moved(self, node: onnx.NodeProto, found: Array) -> Array:
        """What is known of a tensor after its elements have moved."""
        before, after = self._shape(node.input[0]), self._shape(node.output[0])
        found = found.reshape([1] * (len(before) - found.ndim) + list(found.shape))
        if node.op_type == "Transpose":
            return found.transpose(attribute(node, "perm", None) or range(len(before))[::-1])
        if node.op_type == "Expand":
            return found.reshape([1] * (len(after) - len(before)) + list(found.shape))
        return _reshaped(found, before, after)

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._model.values[name].shape


def _reshaped(found: Array, before: Sequence[int], after: Sequence[int]) -> Array:
    """`found` of a tensor that gets another shape: known where the last axes stay, and those in front are alike.

    >>> _reshaped(np.eye(3)[None], (4, 3, 3), (2, 2, 3, 3)).shape
    (1, 1, 3, 3)
    """
    kept = 0
    while kept < min(len(before), len(after)) and before[-1 - kept] == after[-1 - kept]:
        kept += 1
    front = len(before) - kept
    if prod(found.shape[:front]) > 1:
        return np.zeros([1] * len(after), found.dtype)
    return found.reshape([1] * (len(after) - kept) + list(found.shape[front:]))
