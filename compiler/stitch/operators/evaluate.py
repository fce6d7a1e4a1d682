"""Computes stitched programs in numpy with double precision, operator by operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veltair.compiler.graph.layer_spec import LayerSpec
from veltair.compiler.stitch.stitch_program import Shape, StitchProgram
from veltair.compiler.stitch.stitched_parameters import StitchedParameters
from veltair.profiles.artifact.manifest import shape_at

Array = NDArray[Any]

_erf = np.vectorize(math.erf, otypes=[np.float64])
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "erf": lambda a: _erf(a) if a.size else a,
    "tanh": np.tanh,
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "round": np.rint,
    "reciprocal": np.reciprocal,
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "where": lambda c, a, b: np.where(c > 0.5, a, b),
}


def evaluate_program(program: StitchProgram, leaves: Mapping[str, Array], lean: float = 0.0) -> dict[str, Array]:
    """Outputs of a program by name. `lean` is added to what is rounded: values next to a middle take the other side."""
    values = {name: np.asarray(array, np.float64) for name, array in leaves.items()}
    with np.errstate(all="ignore"):
        for op in program.ops:
            terms = [values[t] if isinstance(t, str) else np.float64(t) for t in op.terms]
            if op.kind == "round":
                terms[0] = terms[0] + lean * (1 + np.abs(terms[0]) / 100)
            if op.axes:
                result = getattr(np, op.kind.removeprefix("reduce_"))(terms[0], axis=op.axes, keepdims=True)
            else:
                result = _spread(FUNCTIONS[op.kind](*terms), op.shape)
            values[op.output] = np.asarray(result, np.float64)
        return {name: values[name].astype(np.float32) for name in program.outputs}


def _spread(value: Array, shape: Shape) -> Array:
    """Broadcasts along axes whose extent the operator grows."""
    rest = (1,) * (len(shape) - value.ndim) + value.shape
    return np.broadcast_to(value, [found if d < 0 else d for d, found in zip(shape, rest, strict=True)])


def reference_stitched(spec: LayerSpec, inputs: Sequence[Array], lean: float = 0.0) -> list[Array]:
    """Outputs of a stitched layer for its inputs, in order. lean: see `evaluate_program`."""
    parameters = spec.parameters_as(StitchedParameters)
    given = dict(zip(parameters.names, [*inputs, *spec.weights.values()], strict=False))
    found: dict[str, Array] = {}
    for space in parameters.domains:
        found |= evaluate_program(space.program, {name: given[name] for name in space.program.leaves}, lean)
    shapes = [(t.shape, x.shape) for t, x in zip(spec.inputs, inputs, strict=True)]
    batch = next((b // -d for own, real in shapes for d, b in zip(own, real, strict=True) if d < 0), 1)
    results = parameters.names[len(parameters.names) - len(spec.outputs) :]  # tensors may have got other names since
    return [
        found[name].reshape(shape_at(tensor.shape, batch)) for name, tensor in zip(results, spec.outputs, strict=True)
    ]
