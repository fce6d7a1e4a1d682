"""What sums of products start from: the share of the input's zero point, so that products need not subtract it, and a
bias of whole steps, so that epilogues need not add it.

Units that take unsigned bytes alone see signed inputs with 128 added; then the zero point has 128 more as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm.script.ir_builder import tirx as T

from veltair.compiler.codegen.vectors import LANES, Expr, ramp
from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.graph.parameters.quantised import QuantisedProductParameters
from veltair.compiler.kernels.int8.epilogue import quantum


def unsigned_shift(dtype: str) -> int:
    """What makes inputs of a type unsigned when it is added to them.

    >>> unsigned_shift("int8"), unsigned_shift("uint8")
    (128, 0)
    """
    return 128 if dtype == "int8" else 0


def starting_sums(spec: LayerSpec, shift: int = 0) -> NDArray[np.int64]:
    """Minus the weights' sums of each column, times the zero point where it is known before the layer runs; plus bias.

    shift: what is added to inputs as they are read.
    """
    sums: NDArray[np.int64] = -spec.weights["weight"].astype(np.int64).sum(0)
    if not spec.parameters_as(QuantisedProductParameters).dynamic:
        sums *= quantum(spec, "input")[1] + shift
    return sums + whole_bias(spec)


def whole_bias(spec: LayerSpec) -> NDArray[np.int64]:
    """The bias of each column in steps of its sums; zeros where it is left to the epilogue."""
    if not spec.parameters_as(QuantisedProductParameters).whole_bias:
        return np.zeros(spec.weights["weight"].shape[-1], np.int64)
    return np.rint(bias_steps(spec.weights["bias"], spec.weights["scale"])).astype(np.int64)


def bias_steps(bias: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float64]:
    """The bias of each column in steps of its sums, not rounded; none is none, whatever the steps.

    >>> bias_steps(np.array([0.5, 0.0], np.float32), np.array([0.25, 0.0], np.float32)).tolist()
    [2.0, 0.0]
    """
    none = np.zeros(bias.shape)
    return np.divide(bias.astype(np.float64), scale.astype(np.float64), out=none, where=bias != 0)


def load_start(start: Any, column: Expr, zero: Any | None, shift: int) -> Expr:
    """What 16 columns start from. `zero`: buffer of the zero point that is known only now."""
    found = start[ramp(column)]
    return found if zero is None else found * T.broadcast(T.cast(zero[0], "int32") + shift, LANES)
