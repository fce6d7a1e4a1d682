"""How a tensor of 8 bits stands for floats, and the nodes that change between the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from veltair.compiler.graph.graph_builder import EIGHT_BITS
from veltair.compiler.graph.model_view import Matches, ModelView
from veltair.compiler.onnx.node_attributes import attribute

VIEWS = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
REORDERS = VIEWS | {"Slice", "Split", "Transpose"}


@dataclass(frozen=True, slots=True)
class Quantum:
    """A tensor's values are (steps - zero) * scale.

    >>> Quantum(0.5, 128, "uint8").array.tolist()
    [0.5, 128.0]
    """

    scale: float
    zero: int
    dtype: str  # "uint8" or "int8"

    @property
    def array(self) -> NDArray[np.float64]:
        """Scale and zero point, as they stand among the weights of a layer."""
        return np.array([self.scale, self.zero])


@dataclass(frozen=True, slots=True)
class QuantisedTensor:
    """A tensor of 8 bits and what its steps are.

    >>> QuantisedTensor("xq", Quantum(0.5, 128, "uint8")).name
    'xq'
    """

    name: str
    quantum: Quantum


def quantum_of(node: onnx.NodeProto | None, view: ModelView) -> Quantum | None:
    """That of a QuantizeLinear or DequantizeLinear with one constant scale for all of a tensor of 8 bits."""
    if node is None or node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return None
    steps = node.output[0] if node.op_type == "QuantizeLinear" else node.input[0]
    scale = view.constants.get(node.input[1])
    zero_name = node.input[2] if len(node.input) > 2 else ""
    zero = view.constants.get(zero_name) if zero_name else np.zeros((), np.uint8)
    dtype = view.values[steps].dtype
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or dtype not in EIGHT_BITS:
        return None
    if scale.dtype != np.float32 or attribute(node, "block_size", 0) or not scale.item() > 0:
        return None
    return Quantum(float(scale.item()), int(zero.item()), dtype)


def dequantised(name: str, view: ModelView) -> QuantisedTensor | None:
    """The tensor of 8 bits that a float one stands for."""
    maker = view.makers.get(name)
    if maker is None or maker.op_type != "DequantizeLinear" or maker.input[0] in view.constants:
        return None
    quantum = quantum_of(maker, view)
    return QuantisedTensor(maker.input[0], quantum) if quantum else None


def quantised_behind(name: str, view: ModelView) -> tuple[onnx.NodeProto, Quantum] | None:
    """The QuantizeLinear that alone reads a tensor."""
    user = view.only_user(name)
    if user is None or user.op_type != "QuantizeLinear" or user.input[0] != name:
        return None
    quantum = quantum_of(user, view)
    return (user, quantum) if quantum else None


def meets_integers(given: Sequence[str], made: str, taken: Matches, view: ModelView) -> bool:
    """Whether a layer from steps to steps has a neighbour that computes on integers too; between floats, which stay in
    registers, it would be a pass over memory.

    given, made: tensors of 8 bits. taken: the layers on integers that are known.
    """

    def from_floats(name: str) -> bool:
        maker = view.makers.get(name)
        while maker is not None and maker.op_type in REORDERS:
            maker = view.makers.get(maker.input[0])
        return maker is not None and maker.op_type == "QuantizeLinear" and taken.is_free(maker)

    if not all(map(from_floats, given)):
        return True
    waiting = list(view.users_of(made))
    while waiting:
        user = waiting.pop()
        behind = [each for name in user.output for each in view.users_of(name)]
        if user.op_type in REORDERS:
            waiting += behind
        elif user.op_type != "DequantizeLinear" or not all(map(taken.is_free, behind)):
            return True
    return False


def centred_steps(steps: NDArray[Any], zero: NDArray[Any]) -> NDArray[np.int8] | NDArray[np.int16]:
    """Steps of 8 bits less their zero points, which are broadcast to them: in int16 where int8 does not hold all.

    >>> centred_steps(np.array([100, 227], np.uint8), np.array(100, np.uint8))
    array([  0, 127], dtype=int8)
    >>> centred_steps(np.array([100, 228], np.uint8), np.array(100, np.uint8)).dtype
    dtype('int16')
    """
    centred = steps.astype(np.int16) - zero.astype(np.int16)
    held = np.iinfo(np.int8)
    fits = centred.size == 0 or (centred.min() >= held.min and centred.max() <= held.max)
    return centred.astype(np.int8) if fits else centred
